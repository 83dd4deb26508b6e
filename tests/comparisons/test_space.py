"""What a sweep varies, as people write it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.comparisons.space import (
    Choices,
    Space,
    read_setting,
    require_possible,
    split_settings,
    split_values,
)
from dcfl.errors import ConfigError, DCFLError
from dcfl.experiment import Experiment

KEY = "training.lr"
finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(finite, min_size=2, max_size=6, unique=True))
def test_listed_numbers_are_what_was_written(values: list[float]) -> None:
    assert read_setting(f"{KEY}={','.join(map(repr, values))}") == Choices(KEY, tuple(values))


def test_a_grid_is_every_combination_once() -> None:
    space = Space((Choices("training.lr", (0.1, 0.2)), Choices("method.mu", (1, 5, 10))))
    assert [tuple(point.values()) for point in space.points] == [
        (lr, mu) for lr in (0.1, 0.2) for mu in (1, 5, 10)
    ]


@given(st.text(max_size=30))
def test_whatever_is_written_it_is_read_or_refused(text: str) -> None:
    with suppress(DCFLError):
        split_settings([f"{KEY}={text}"])


@pytest.mark.parametrize("text", ["1,,2", "1,", "1,1", "1,1.0"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=KEY):
        split_settings([f"{KEY}={text}"])


@pytest.mark.parametrize(
    "setting",
    ["engine.device=cuda:0,1", "data.path=a,b", "data.dataset=folder:x", "training.lr=0.1",
     'data.class_names=["a", "b"]', "data.dataset='a,b'", "output.dir=1:2", "training.lr=0.1:1"],
)  # fmt: skip
def test_one_value_is_one_value(setting: str) -> None:
    assert read_setting(setting) is None


def test_lists_of_lists_and_of_names() -> None:
    windows = read_setting("data.window=[40, 80],[40, 400]")
    assert windows == Choices("data.window", ((40, 80), (40, 400)))
    methods = read_setting("method.name=fedavg, 'dcfl-pw'")
    assert methods == Choices("method.name", ("fedavg", "dcfl-pw"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["training.lr=0.1"], "nothing to vary"),
        (["training.lr=0.1,0.2", "training.lr=1,2"], "varied twice"),
        (["federation.seed=0,1"], "--seeds"),
        (["data.seed=0,1"], "--seeds"),
        (["data.holdout=0.1,0.2"], "one value"),
        (["lr=0.1,0.2"], "section.key=value"),
    ],
)
def test_what_cannot_be_varied(settings: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        split_settings(settings)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("training.lrr=0.1,0.2", "did you mean lr"),
        ("method.muu=0.1,0.2", "did you mean mu"),
        ("training.epochs=0,3", "at least 1"),
        ("training.epochs=0.5,3", "whole"),
        ("training.lr=0.1,x", "must be a number"),
    ],
)
def test_the_experiment_must_take_it(setting: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        require_possible(split_settings([setting])[1], Experiment())


def test_fields_of_methods_that_are_varied_are_left_to_the_points() -> None:
    _, space = split_settings(["method.name=fedavg,moon", "method.mu=0.1,1"])
    require_possible(space, Experiment())


def test_from_python_lists_vary() -> None:
    fixed, space = split_values({"training.lr": [0.1, 0.2], "federation.rounds": 3})
    assert fixed == {"federation": {"rounds": 3}}
    assert [*map(str, space.dimensions)] == ["training.lr = 0.1, 0.2"]
