"""What a study varies: lists of values, of which it tries every combination."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from dcfl.config import CHOICES, NOT_TOML, Tables, apply, parse_settings
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.runs.identity import kind_of

Point = dict[str, Any]  # a value for each key that is varied
OPENING, CLOSING = "[{(", "]})"


@dataclass(frozen=True)
class Choices:
    key: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.key} = {', '.join(map(plain, self.values))}"


@dataclass(frozen=True)
class Space:
    dimensions: tuple[Choices, ...]

    @property
    def keys(self) -> list[str]:
        return [dimension.key for dimension in self.dimensions]

    @property
    def points(self) -> list[Point]:
        """Every combination; the first key changes slowest."""
        combinations = product(*(dimension.values for dimension in self.dimensions))
        return [dict(zip(self.keys, values, strict=True)) for values in combinations]


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
    """As `split_settings`, from Python: lists are varied."""
    varied = [choices(key, value) for key, value in settings.items() if _is_list(value)]
    fixed = {key: value for key, value in settings.items() if not _is_list(value)}
    return tables_of(fixed), _space(varied)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def read_setting(setting: str) -> Choices | None:
    """What the setting varies; None if it has one value, as keys that change no result have."""
    parse_settings([setting])  # refuses what is no section.key=value
    key, _, text = (part.strip() for part in setting.partition("="))
    parts = split_commas(text)
    if kind_of(key) == "place" or len(parts) == 1 or _toml(text) is not None:
        return None
    if not all(parts):
        raise ConfigError(f"{key}={text}: there is an empty value between the commas")
    values = (part if (value := _toml(part)) is None else value for part in parts)
    return choices(key, tuple(values))


def _space(varied: Sequence[Choices]) -> Space:
    if not varied:
        raise ConfigError(
            "nothing to vary: give a setting several values, as in training.lr=0.01,0.1"
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


def read_choices(setting: str) -> Choices:
    found = read_setting(setting)
    if found is None:
        raise ConfigError(f"--over {setting}: give several values, as in data.alpha=0.1,0.5,inf")
    return found


def choices(key: str, given: Sequence[Any]) -> Choices:
    values = tuple(map(_frozen, given))
    if not values:
        raise ConfigError(f"{key}: there is no value to try")
    if any(values.index(value) < place for place, value in enumerate(values)):
        raise ConfigError(f"{key}: name each value once")
    return Choices(key, values)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if _is_list(value) else value


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


def require_possible(space: Space, experiment: Experiment) -> None:
    # Whether a method has a field depends on the point, if points have different methods.
    open = tuple(key.partition(".")[0] + "." for key in CHOOSERS if key in space.keys)
    for dimension in space.dimensions:
        if not dimension.key.startswith(open) or dimension.key in CHOOSERS:
            for value in dimension.values:
                apply(experiment, tables_of({dimension.key: value}))


CHOOSERS = tuple(f"{section}.{key}" for section, (key, _) in CHOICES.items())
