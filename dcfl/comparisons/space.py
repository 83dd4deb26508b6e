"""What a sweep varies: lists of values and ranges of numbers."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcfl.config import CHOICES, NOT_TOML, Tables, apply, parse_settings
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.runs.identity import kind_of

Point = dict[str, Any]  # a value for each key that is varied
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER})((?::[a-z]+)*)")
LIKE_A_RANGE = re.compile(rf"{NUMBER}:.*")
DIGITS = 4  # that count, of numbers that are drawn: what a person would write down
OPENING, CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Choices:
    key: str
    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def at(self, share: float) -> Any:
        """The value at a share from 0 to 1, evenly spread."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def known(self, value: Any) -> Any:
        """The value as it is here; ValueError if it is none of them."""
        return self.values[self.values.index(value)]

    def __str__(self) -> str:
        return f"{self.key} = {', '.join(map(plain, self.values))}"


@dataclass(frozen=True)
class Range:
    key: str
    low: float
    high: float
    log: bool = False  # evenly in the number's logarithm
    whole: bool = False

    @property
    def ends(self) -> tuple[Any, ...]:
        return (self.at(0.0), self.at(1.0))

    def at(self, share: float) -> float | int:
        """The value at a share from 0 to 1, evenly spread."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        return self.within(value)

    def within(self, value: float) -> float | int:
        """The nearest number of the range that a person would write down."""
        if self.whole:
            return int(min(max(math.floor(value + 0.5), self.low), self.high))
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def known(self, value: Any) -> float | int:
        """The value; ValueError or TypeError if it is no number of the range."""
        if (
            isinstance(value, bool)
            or not self.low <= value <= self.high
            or self.within(value) != value
        ):
            raise ValueError(f"{value!r} is not in {self}")
        return self.within(value)

    def __str__(self) -> str:
        kinds = [word for word, set in (("log", self.log), ("int", self.whole)) if set]
        return f"{self.key} = {':'.join([plain(self.low), plain(self.high), *kinds])}"


Dimension = Choices | Range


@dataclass(frozen=True)
class Space:
    dimensions: tuple[Dimension, ...]

    @property
    def keys(self) -> list[str]:
        return [dimension.key for dimension in self.dimensions]

    @property
    def ranges(self) -> list[Range]:
        return [dimension for dimension in self.dimensions if isinstance(dimension, Range)]

    def described(self) -> list[str]:
        return [str(dimension) for dimension in self.dimensions]


def plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_names(keys: Iterable[str]) -> list[str]:
    """Keys without their tables, unless two would be the same."""
    keys = list(keys)
    names = [key.partition(".")[2] for key in keys]
    return names if len({*names}) == len(names) else keys


def tables_of(point: Mapping[str, Any]) -> Tables:
    tables: Tables = {}
    for key, value in point.items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    return tables


# Reading ------------------------------------------------------------------------------------------


def split_settings(settings: Iterable[str]) -> tuple[list[str], Space]:
    """What is fixed, as it came, and what is varied."""
    read = [(setting, read_setting(setting)) for setting in settings]
    fixed = [setting for setting, dimension in read if dimension is None]
    return fixed, _space([dimension for _, dimension in read if dimension is not None])


def split_values(settings: Mapping[str, Any]) -> tuple[Tables, Space]:
    """As `split_settings`, from Python: lists and the text of a range are varied."""
    fixed: Point = {}
    varied: list[Dimension] = []
    for key, value in settings.items():
        if isinstance(value, list | tuple):
            varied.append(choices(key, value))
        elif isinstance(value, str) and LIKE_A_RANGE.fullmatch(value):
            varied.append(_range(key, value))
        else:
            fixed[key] = value
    return tables_of(fixed), _space(varied)


def read_setting(setting: str) -> Dimension | None:
    """What the setting varies; None if it has one value, as keys that change no result have."""
    parse_settings([setting])  # refuses what is no section.key=value
    key, _, text = (part.strip() for part in setting.partition("="))
    if kind_of(key) == "place" or _toml(text) is not None:
        return None
    if LIKE_A_RANGE.fullmatch(text):
        return _range(key, text) if "," not in text else _choices_in(key, text)
    return _choices_in(key, text) if len(split_commas(text)) > 1 else None


def _space(varied: Sequence[Dimension]) -> Space:
    if not varied:
        raise ConfigError(
            "nothing to vary: give a setting several values, training.lr=0.01,0.1, or a range, "
            "training.lr=0.001:1:log"
        )
    for dimension in varied:
        key = dimension.key
        if kind_of(key) == "seed":
            raise ConfigError(f"{key}: seeds are given with --seeds 0,1,2; each point gets all")
        if key == "data.holdout":
            raise ConfigError(f"{key} is what all trials are scored on: give it one value")
        if sum(other.key == key for other in varied) > 1:
            raise ConfigError(f"{key} is varied twice: name each key once")
    return Space(tuple(varied))


def _toml(text: str) -> Any:
    """The value; None if the text is no TOML value."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except NOT_TOML:
        return None


def _range(key: str, text: str) -> Range:
    found = RANGE.fullmatch(text)
    words = found[3].split(":")[1:] if found else []
    if found is None or not {*words} <= {"log", "int"} or len({*words}) < len(words):
        raise ConfigError(
            f"{key}={text}: a range is low:high, low:high:log, low:high:int or low:high:log:int"
        )
    low, high = float(found[1]), float(found[2])
    if not low < high < math.inf:
        raise ConfigError(f"{key}={text}: the lower end comes first, and both are finite")
    if "log" in words and low <= 0:
        raise ConfigError(f"{key}={text}: a logarithmic range begins above 0")
    if "int" in words and not (low.is_integer() and high.is_integer()):
        raise ConfigError(f"{key}={text}: the ends of a range of whole numbers are whole")
    if "int" in words:
        low, high = int(low), int(high)
    return Range(key, low, high, "log" in words, "int" in words)


def _choices_in(key: str, text: str) -> Choices:
    parts = split_commas(text)
    if not all(parts):
        raise ConfigError(f"{key}={text}: there is an empty value between the commas")
    values = (part if (value := _toml(part)) is None else value for part in parts)
    return choices(key, tuple(values))


def read_choices(setting: str) -> Choices:
    """Of `section.key=a,b,c`."""
    found = read_setting(setting)
    if not isinstance(found, Choices):
        raise ConfigError(f"--over {setting}: give several values, as in data.alpha=0.1,0.5,inf")
    return found


def choices(key: str, given: Sequence[Any]) -> Choices:
    values = tuple(frozen(value) for value in given)
    if not values:
        raise ConfigError(f"{key}: there is no value to try")
    if any(values.index(value) < place for place, value in enumerate(values)):
        raise ConfigError(f"{key}: name each value once")
    return Choices(key, values)


def frozen(value: Any) -> Any:
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def split_commas(text: str) -> list[str]:
    """The parts between commas that are not inside brackets or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in OPENING:
            depth += 1
        elif char in CLOSING:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]


# Checking -----------------------------------------------------------------------------------------


def fitted(space: Space, experiment: Experiment) -> Space:
    """Refuses keys and values that the experiment cannot have. A range of a key that takes whole
    numbers only becomes one of those."""
    # Whether a method has a field depends on the point, if points have different methods.
    open = tuple(key.partition(".")[0] + "." for key in CHOOSERS if key in space.keys)
    return Space(
        tuple(
            dimension
            if dimension.key.startswith(open) and dimension.key not in CHOOSERS
            else _fitted(dimension, experiment)
            for dimension in space.dimensions
        )
    )


CHOOSERS = tuple(f"{section}.{key}" for section, (key, _) in CHOICES.items())


def _fitted(dimension: Dimension, experiment: Experiment) -> Dimension:
    if isinstance(dimension, Range) and not dimension.whole and _takes_whole(dimension, experiment):
        words = ":log:int" if dimension.log else ":int"
        dimension = _range(dimension.key, f"{dimension.low}:{dimension.high}{words}")
    for value in dimension.ends:
        apply(experiment, tables_of({dimension.key: value}))
    return dimension


def _takes_whole(dimension: Range, experiment: Experiment) -> bool:
    try:
        apply(experiment, tables_of({dimension.key: dimension.low + 0.5}))
    except ConfigError as error:
        return "whole number" in str(error)
    return False
