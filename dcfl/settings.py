"""Each key of the config once: its type, default, bounds and kind in one declaration.

Its meaning is the comment beside it. Checks, `dcfl new config`, the reference of all keys and what
makes two runs the same are made from the declarations: a new key is one line.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import Field, dataclass, field, fields
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from dcfl.errors import ConfigError

LARGEST_INTEGER, LARGEST_FLOAT = 2**31 - 1, 1e38  # the second is close to float32's largest

Kind = Literal[
    "result",  # changes numbers, if only their last bits
    "place",  # where and how the work is done; does not change numbers
    "seed",  # runs that differ only in seeds repeat one experiment
]
Value = TypeVar("Value")


class Key(NamedTuple):
    """What a declaration says besides type and default."""

    ge: float | None = None  # at least
    gt: float | None = None  # above
    le: float | None = None  # at most; inf: infinity is allowed
    lt: float | None = None  # below
    zero: str = ""  # what 0 stands for
    hint: str = ""  # ends the message about a number out of bounds
    kind: Kind = "result"

    def within_bounds(self, number: float) -> bool:
        return (
            (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )

    @property
    def bounds(self) -> str:
        """In words: `be at least 1`, `lie in [0, 1)`; empty if any number will do."""
        if self.ge is None and self.gt is None:
            return ""
        low = _number(self.gt if self.ge is None else self.ge or 0)
        low = f"{low} ({self.zero})" if self.zero else low
        high = self.lt if self.le is None else self.le
        if high is None or high == inf:
            if self.ge is None:
                return f"be above {low}"
            return f"be at least {low}" if self.ge else f"be {low} or more"
        if self.ge is not None and self.le is not None:
            return f"lie in {low} to {_number(high)}"
        left, right = "(" if self.ge is None else "[", ")" if self.le is None else "]"
        return f"lie in {left}{low}, {_number(high)}{right}"


def _number(value: float | None) -> str:
    return f"{value:,}" if value and value >= 10_000 else f"{value or 0:g}"


def key(default: Value, *, kw_only: bool = False, **about: Any) -> Value:
    """Declare a key of a `Settings` class by the fields of `Key`; the bounds of a list hold for
    each of its numbers."""
    declared: Value = field(default=default, metadata={"key": Key(**about)}, kw_only=kw_only)
    return declared


def kind_of_field(declared: Field[Any]) -> Kind:
    """A field that is declared without `key` changes results, and has no bounds."""
    kind: Kind = declared.metadata.get("key", Key()).kind
    return kind


@dataclass(frozen=True)
class Settings:
    """The base class of every table of the config, and of every choice with fields in a table."""

    table_name: ClassVar[str]

    def __post_init__(self) -> None:
        """Refuse numbers out of bounds, NaN and infinity; an override must call this one."""
        for one in fields(self):
            declared, value = one.metadata.get("key"), getattr(self, one.name)
            for number in value if isinstance(value, tuple) else (value,):
                if declared is None or not isinstance(number, int | float):
                    continue
                if not declared.within_bounds(number):
                    raise ConfigError(self._out_of_bounds(one.name, declared, number))
                largest = LARGEST_INTEGER if isinstance(number, int) else LARGEST_FLOAT
                if not (abs(number) <= largest or number == declared.le):
                    raise ConfigError(f"{self.table_name}.{one.name} = {number} is out of range")

    def _out_of_bounds(self, name: str, declared: Key, number: float) -> str:
        parts = get_args(get_type_hints(type(self))[name])
        words = [get_args(part)[0] for part in parts if get_origin(part) is Literal]
        instead = f', or be "{words[0]}"' if words else ""
        given = f"{number:g}" if isinstance(number, float) else number
        hint = f": {declared.hint}" if declared.hint else ""
        return f"{self.table_name}.{name} must {declared.bounds}{instead}, not {given}{hint}"


def comments(owner: type) -> dict[str, str]:
    """By field of a dataclass and its bases, the comment behind it or the one above it, if any."""
    found: dict[str, str] = {}
    for one in reversed(owner.__mro__):
        if one.__module__.startswith("dcfl"):
            found |= _own_comments(one)
    return found


def _own_comments(owner: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            behind = (
                line.partition("  # ")[2] for line in lines[node.lineno - 1 : node.end_lineno]
            )
            text = " ".join(filter(None, behind)) or _above(lines, node.lineno - 1)
            found[node.target.id] = re.sub(r"(  # )?type: ignore\S*", "", text).strip()
    return {name: text for name, text in found.items() if text}


def _above(lines: list[str], number: int) -> str:
    """The block of comment lines that ends just before this line."""
    start = number
    while lines[start - 1].strip().startswith("# "):
        start -= 1
    return " ".join(line.strip().removeprefix("# ") for line in lines[start:number])
