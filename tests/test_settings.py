"""Each key is declared once: its bounds are checked, told and documented from there."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import pytest
import torch

import dcfl
from dcfl.config import DEFAULT, SECTIONS, describe_type, experiment_from, parse_settings
from dcfl.errors import ConfigError, DCFLError, Diverged
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate
from dcfl.methods import METHODS
from dcfl.methods.method import Method
from dcfl.runs.run import Run
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.optimizers import OPTIMIZERS, ServerOptimizer
from dcfl.settings import LARGEST_FLOAT, LARGEST_INTEGER, Key, Settings, key
from dcfl.tensors import not_finite

OWNERS: list[Settings] = [
    *(getattr(DEFAULT, section) for section in SECTIONS if section != "method"),
    *(method() for method in METHODS.values()),
    *(optimizer() for optimizer in OPTIMIZERS.values()),
]
NUMBERS = [
    pytest.param(owner, field.name, id=f"{type(owner).__name__}.{field.name}")
    for owner in OWNERS
    for field in fields(owner)
    if "number" in describe_type(get_type_hints(type(owner))[field.name])
]


@pytest.mark.parametrize(("owner", "name"), NUMBERS)
def test_no_key_takes_what_is_no_number_to_train_with(owner: Settings, name: str) -> None:
    whole = "whole" in describe_type(get_type_hints(type(owner))[name])
    several = isinstance(getattr(owner, name), tuple)
    for number in (2**63, -(2**63)) if whole else (math.nan, math.inf, -math.inf, 1e308, -1e308):
        if (name, number) == ("alpha", math.inf):  # an even split
            continue
        changes: dict[str, Any] = {name: (number,) if several else number}
        with pytest.raises(ConfigError, match=rf"^{owner.table_name}\.{name} (must|= )"):
            replace(owner, **changes)


@dataclass(frozen=True)
class Toy(Settings):
    table_name: ClassVar = "toy"

    count: int | Literal["auto"] = key("auto", ge=1)
    share: float = key(0.5, gt=0, le=1, hint="a half is usual")
    limit: float = key(0.0, ge=0, le=10**6, zero="none")
    levels: tuple[int, ...] = key((), ge=0)
    free: float = key(0.0)
    plain: float = math.inf


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, 'toy.count must be at least 1, or be "auto", not 0'),
        ({"share": 0.0}, "toy.share must lie in (0, 1], not 0: a half is usual"),
        ({"share": math.nan}, "toy.share must lie in (0, 1], not nan: a half is usual"),
        ({"limit": -1.0}, "toy.limit must lie in 0 (none) to 1,000,000, not -1"),
        ({"levels": (1, -1)}, "toy.levels must be 0 or more, not -1"),
        ({"free": math.inf}, "toy.free = inf is out of range"),
    ],
)
def test_a_message_is_made_from_the_declaration(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Toy(**values)
    assert str(refused.value) == message


def test_what_is_allowed() -> None:
    assert Toy(3, 1.0, 10.0**6, (0, 2), -5.0) == Toy(3, 1.0, 10.0**6, (0, 2), -5.0, math.inf)


def choice(owner: Settings) -> list[str]:
    """What chooses these settings in their table."""
    if isinstance(owner, Method):
        return [f"method.name={owner.name}"]
    return [f"server.optimizer={owner.name}"] if isinstance(owner, ServerOptimizer) else []


WORDS = [
    *("0", "-1", "-0.5", "-0.0", "nan", "inf", "-inf", "1e308", "-1e308", "1e400", "5e-324"),
    *(str(2**63), str(-(2**63)), "9" * 5000, "1_000", "0x10", "true", "text", "٣", "３", "", " "),
    *(
        "[]",
        "[1]",
        "[nan]",
        "[1e308]",
        "[[1]]",
        '["a"]',
        '["\\u0000"]',
        '"1"',
        "{a=1}",
        "1979-05-27",
    ),
]


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: type(owner).__name__)
def test_whatever_a_key_is_set_to_is_taken_or_refused_in_a_line(owner: Settings) -> None:
    for field, word in product(fields(owner), WORDS):
        setting = f"{owner.table_name}.{field.name}={word}"
        with warnings.catch_warnings(action="ignore"):
            try:
                taken = experiment_from(None, parse_settings([*choice(owner), setting]))
            except ConfigError as error:
                refused = str(error)
            else:
                refused = ""
        if refused:
            assert field.name in refused or owner.table_name in refused, setting
            assert "\n" not in refused
            continue
        table = getattr(taken, owner.table_name)
        value = getattr(table if hasattr(table, field.name) else table.optimizer, field.name)
        assert not isinstance(value, float) or abs(value) <= LARGEST_FLOAT or field.name == "alpha"
        assert word.isascii() or isinstance(value, str)  # no number in other digits


def extremes(owner: Settings, name: str) -> list[float]:
    """The least and the most that the declaration allows."""
    declared: Key = next(field for field in fields(owner) if field.name == name).metadata["key"]
    whole = "whole" in describe_type(get_type_hints(type(owner))[name])
    most = LARGEST_INTEGER if whole else LARGEST_FLOAT
    low, high = declared.ge, declared.le
    if low is None:
        low = -most if declared.gt is None else math.nextafter(declared.gt, math.inf)
    if high is None:
        high = most if declared.lt is None else math.nextafter(declared.lt, -math.inf)
    return [int(end) if whole else float(end) for end in (low, high)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=lambda one: one.name)
def test_no_server_optimiser_leaves_numbers_that_are_not_finite_unsaid(
    optimizer: type[ServerOptimizer],
) -> None:
    """At all ends of all its bounds together, for small and large steps of the clients."""
    names = [field.name for field in fields(optimizer)]
    ends = product(*(extremes(optimizer(), name) for name in names), (0.0, 1e-30, 1e-3, 1e30))
    for *values, step in ends:
        settings = ServerSettings(optimizer=optimizer(**dict(zip(names, values, strict=True))))
        server = Server(METHODS["fedavg"](), 1, frozenset("w"), LocalTraining(), settings)
        state = ServerState(0, {"w": torch.ones(3)}, {}, {})
        try:
            for sign in (1, -1, 1):
                broadcast = server.broadcast(state)
                moved = {"w": broadcast.weights["w"] + sign * step}
                state, _ = server.aggregate(
                    state, broadcast, [ClientUpdate(0, moved, {}, 9, 1, {})]
                )
                assert not_finite(state.weights) is None, (values, step)
        except Diverged:
            continue


TINY = [
    "federation.rounds=2",
    "training.epochs=1",
    "data.clients=3",
    "data.train_images=120",
    "data.min_size=5",
    "data.test_images=50",
    "federation.participation=1.0",
    "model.width=4",
    "engine.workers=1",
    "output.report=false",
]
NEEDED = {  # for the key to count
    "byzantine": ["server.aggregation=trimmed-mean"],
    "clip_norm": ["server.aggregation=norm-clipping"],
    "delta": ["privacy.clip=1", "privacy.noise=1", "method.name=fedavg"],
    "noise": ["privacy.clip=1", "method.name=fedavg"],
    "clip": ["method.name=fedavg"],
    "hang": ["federation.deadline=1"],
    "head_epochs": ['federation.personal=["classifier"]'],
    "patience": ["data.holdout=0.2"],
    "target_accuracy": ["data.holdout=0.2"],
    "share": ["attack.kind=noise"],
    "strength": ["attack.kind=noise"],
    "per_client": ["data.partition=shards"],
}
LASTING = {"rounds", "epochs", "head_epochs", "width", "threads"}  # whose most takes long


def at_their_ends() -> Iterator[Any]:
    for param in NUMBERS:
        owner, name = param.values
        several = isinstance(getattr(owner, name), tuple)
        for end in extremes(owner, name)[: 1 if name in LASTING else 2]:
            value = [end] if several else end
            setting = f"{owner.table_name}.{name}={value}"
            yield pytest.param([*choice(owner), *NEEDED.get(name, []), setting], id=setting)


@pytest.mark.slow
@pytest.mark.parametrize("words", list(at_their_ends()))
def test_a_run_at_the_ends_of_the_bounds_works_or_says_why_not(
    words: list[str], tmp_path: Path
) -> None:
    settings = [*TINY, *words, f"output.dir={tmp_path / 'run'}"]
    with warnings.catch_warnings(action="ignore"):
        try:
            for _ in Run(experiment_from(None, parse_settings(settings))).rounds():
                pass
        except DCFLError as said:
            message = str(said)
        else:
            message = ""
    assert "\n" not in message
    assert message or not_finite(dcfl.load_model(tmp_path / "run").state_dict()) is None
