"""Each key is declared once: its bounds are checked, told and documented from there."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_type_hints

import pytest

from dcfl.config import DEFAULT, SECTIONS, describe_type
from dcfl.errors import ConfigError
from dcfl.methods import METHODS
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.settings import Settings, key

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
