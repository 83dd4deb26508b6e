"""Turns TOML files and key=value settings into an Experiment, and back into TOML. Keys are strict.

A config never names code to import.
"""

from __future__ import annotations

import json
import re
import tomllib
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from dcfl.errors import ConfigError, DCFLError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS, Method
from dcfl.methods.method import require_plain_name
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.settings import LARGEST_INTEGER, Settings
from dcfl.system.storage import MOST_OF_CONFIG, read_whole
from dcfl.system.wording import nearest, one_line, typed

Table = dict[str, Any]
Tables = dict[str, Table]
AnySettings = TypeVar("AnySettings", bound=Settings)

DEFAULT = Experiment()
# Tables whose fields depend on a choice by name: the key of that choice and its default.
CHOICES = {
    "method": ("name", DEFAULT.method.name),
    "server": ("optimizer", DEFAULT.server.optimizer.name),
}
MOST_PARTS = 50  # of a key
# tomllib raises ValueError for numbers of thousands of digits, RecursionError for deep nesting.
NOT_TOML = (tomllib.TOMLDecodeError, ValueError, RecursionError)
SECTIONS = {field.name: field for field in fields(Experiment)}
# The keys of [server] other than the optimiser and its fields.
SERVER_KEYS = [field.name for field in fields(ServerSettings) if field.name != "optimizer"]


def read_toml(path: Path, errors: Literal["strict", "surrogateescape"] = "strict") -> Tables:
    """The tables of a config file, unchecked. `errors`: how to treat bytes that are not UTF-8."""
    try:
        return tables_in(read_whole(path, MOST_OF_CONFIG).decode("utf-8-sig", errors))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such config file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except NOT_TOML as error:
        raise ConfigError(f"{path}: not valid TOML: {_why_not(error)}") from error


def tables_in(text: str) -> Tables:
    """The tables of a config's text; an error of NOT_TOML, or a ConfigError, which is one."""
    if any(len(re.findall(r"[^.]\.", part)) > MOST_PARTS for part in re.split("[=,\n]", text)):
        raise ValueError("a key of too many parts")  # tomllib would take hours
    tables = tomllib.loads(text)
    str(tables)  # refuses integers of thousands of hexadecimal digits too
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{name} must stand in a table, such as [data]")
    return tables


def _why_not(error: Exception) -> str:
    """One of NOT_TOML, in words that are not advice for Python's programmers."""
    if isinstance(error, RecursionError):
        return "lists and tables nested too deeply"
    digits = "integer string conversion" in str(error)
    return "a whole number with more digits than any setting has" if digits else str(error)


def parse_settings(settings: Iterable[str]) -> Tables:
    """Parse `section.key=value` settings into tables. A value that is not TOML is a string."""
    tables: Tables = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot and section and name):
            raise ConfigError(f"{setting!r} is not of the form section.key=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
            str(value)  # as above
        except NOT_TOML:
            value = text.strip()
        tables.setdefault(section, {})[name] = value
    return tables


def merge(base: Tables, changes: Tables) -> Tables:
    """`changes` on top of `base`. Another method or optimiser drops the previous one's fields."""
    merged = {name: dict(table) for name, table in base.items()}
    for name, table in changes.items():
        old = merged.get(name, {})
        if name in CHOICES:
            key, default = CHOICES[name]
            general = SERVER_KEYS if name == "server" else []
            before = old.get(key, default)
            if table.get(key, before) != before:
                dropped = [field for field in old if field not in (key, *general)]
                if dropped:
                    warnings.warn(
                        f"{name}.{dropped[0]} of the config belongs to {before} and is not used "
                        f"with {table[key]}",
                        stacklevel=2,
                    )
                old = {field: old[field] for field in old if field in general}
        merged[name] = {**old, **table}
    return merged


def apply(experiment: Experiment, tables: Mapping[str, Table], anew: bool = False) -> Experiment:
    """The experiment with its settings replaced by those in the tables. `anew`: its method starts
    from the values for the data set, though it keeps its name."""
    for name in tables:
        if name not in SECTIONS:
            raise ConfigError(f"unknown table [{name}]{nearest(name, SECTIONS)}")
    changed = {
        name: _changed(getattr(experiment, name), table)
        for name, table in tables.items()
        if name not in ("method", "server")
    }
    if "method" in tables:
        dataset = changed.get("data", experiment.data).dataset
        changed["method"] = _changed_method(experiment.method, tables["method"], dataset, anew)
    if "server" in tables:
        changed["server"] = _changed_server(experiment.server, tables["server"])
    return replace(experiment, **changed) if changed else experiment


def _changed_method(current: Method, table: Table, dataset: str, anew: bool) -> Method:
    fields_only = {key: value for key, value in table.items() if key != "name"}
    name = table.get("name", current.name)
    try:
        if anew or name != current.name:
            current = _new_method(method_named(name), dataset)
        return _changed(current, fields_only, also=("name",) if fields(current) else ())
    except DCFLError:
        raise
    except (ValueError, AssertionError) as error:  # a user's own __post_init__
        raise ConfigError(f"the method {name} refuses its fields: {one_line(error)}") from error


def _new_method(method_class: type[Method], dataset: str) -> Method:
    """Refuses user-defined methods whose fields do not fit into a config file."""
    try:
        method = method_class.for_dataset(dataset)
        get_type_hints(method_class)
        for value in asdict(method).values():
            if isinstance(value, Mapping) or (value is not None and not to_toml(value)):
                raise TypeError(f"{value!r} has no place in a table")
    except (TypeError, NameError) as error:
        raise ConfigError(
            f"the method {method_class.name} cannot be used ({error}): each of its fields needs a "
            f"type and a default that a config file can hold"
        ) from error
    return method


def method_named(name: object) -> type[Method]:
    if not isinstance(name, str) or name not in METHODS:
        raise ConfigError(
            f"method.name: no method {name!r}{nearest(str(name), METHODS)} "
            f"(`dcfl methods` lists them; one of your own: --method-file FILE.py)"
        )
    require_plain_name(name)
    return METHODS[name]


def _changed_server(current: ServerSettings, table: Table) -> ServerSettings:
    """The table holds the optimiser's name next to the optimiser's fields."""
    optimizer, values = current.optimizer, dict(table)
    name = values.pop("optimizer", optimizer.name)
    if name != optimizer.name:
        if not isinstance(name, str) or name not in OPTIMIZERS:
            raise ConfigError(
                f"server.optimizer: no optimiser {name!r}{nearest(str(name), OPTIMIZERS)}"
            )
        optimizer = OPTIMIZERS[name]()
    general = {key: values.pop(key) for key in list(values) if key in SERVER_KEYS}
    optimizer = _changed(optimizer, values, also=("optimizer", *SERVER_KEYS))
    return replace(_changed(current, general), optimizer=optimizer)


# Each takes a millisecond, and a study has thousands of settings.
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def _changed(
    current: AnySettings, table: Mapping[str, Any], also: tuple[str, ...] = ()
) -> AnySettings:
    """Settings with values from a table, after checking that keys exist and types match.

    `also`: keys of the same table that belong to other settings, for the hint on a misspelt key.
    """
    hints, section = _hints(type(current)), current.table_name
    names = [field.name for field in fields(current)]
    values = {}
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"unknown key {section}.{key}{nearest(key, [*also, *names])}")
        value = tuple(value) if isinstance(value, list) else value  # frozen, like the rest
        for text in value if isinstance(value, tuple) else (value,):
            _require_writable(text, f"{section}.{key}")
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ConfigError(f"{section}.{key} = {value} is out of range")
        try:
            values[key] = _adapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(
                f"{section}.{key} must be {describe_type(hints[key])}, not {value!r}"
                f"{_as_a_list(f'{section}.{key}', hints[key], value)}"
            ) from error
    return replace(current, **values)


def _as_a_list(key: str, hint: Any, value: object) -> str:
    """The end of an error message about a,b where a list is wanted: how it is typed."""
    if get_origin(hint) is not tuple or not isinstance(value, str):
        return ""
    parts: list[Any] = [part.strip(" '\"") for part in value.strip(" []").split(",")]
    if get_args(hint)[0] in (int, float):
        try:
            parts = [get_args(hint)[0](part) for part in parts]
        except ValueError:
            return ""
    return f": a list is typed as {typed(key, parts)}"


def _require_writable(value: object, key: str) -> None:
    """Refuses text that config.toml cannot store. It can store paths that are not UTF-8."""
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{key} = {value!r}: no path and no name has a zero byte in it")
    try:
        str(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{key} = {value!r}: not valid Unicode") from error


def describe_type(hint: Any) -> str:
    """A type in plain English: `a whole number`, `"sum" or "mean"`."""
    if get_origin(hint) is Literal:
        return " or ".join(to_toml(value) for value in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe_type(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list, each {describe_type(get_args(hint)[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return names.get(hint, str(hint))


def experiment_from(
    source: Experiment | str | Path | None = None, changes: Tables | None = None
) -> Experiment:
    """Build an experiment from a config file, another experiment or the defaults, plus changes.

    A method chosen by name starts from the values the DCFL paper used on the data set; an
    Experiment's method keeps its values.
    """
    if isinstance(source, Experiment):
        return apply(source, changes or {})
    tables = merge({} if source is None else read_toml(Path(source)), changes or {})
    return apply(DEFAULT, {"method": {}, **tables}, anew=True)


def load_experiment(
    experiment_or_path: Experiment | str | Path | None = None, **overrides: Any
) -> Experiment:
    """An experiment from a config file, or from another experiment, with settings on top.

    Args:
        experiment_or_path: A config file, an Experiment, or nothing: the defaults.
        **overrides: Tables (`federation={"rounds": 20}`), choices by name (`method="fedavg"`),
            settings objects (`method=MyMethod(mu=0.5)`) or dotted keys
            (`**{"training.lr": 0.05}`).

    Returns:
        The experiment. Nothing is loaded or trained yet.

    Raises:
        ConfigError: A table or key is unknown, or a value is not of its type.

    Example:
        >>> import dcfl
        >>> experiment = dcfl.load_experiment(method="moon", federation={"rounds": 20})
        >>> experiment.method.name, experiment.federation.rounds
        ('moon', 20)
    """
    tables: Tables = {}
    settings_objects: dict[str, Any] = {}
    kinds = get_type_hints(Experiment)
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if name:
            tables.setdefault(section, {})[name] = value
        elif isinstance(value, Mapping):
            tables.setdefault(section, {}).update(value)
        elif isinstance(value, str):
            chooser, _ = CHOICES.get(section, ("name", ""))
            tables.setdefault(section, {})[chooser] = value
        elif section in kinds and isinstance(value, kinds[section]):
            settings_objects[section] = value
        else:
            raise ConfigError(
                f"{section} = {value!r}: give the settings of a table of the config, as a dict, "
                f"a name or a settings object ({', '.join(kinds)})"
            )
    on_top = {name: tables.pop(name) for name in settings_objects if name in tables}
    experiment = experiment_from(experiment_or_path, tables)
    if settings_objects:
        experiment = replace(experiment, **settings_objects)
    return apply(experiment, on_top)


def from_toml(text: str) -> Experiment:
    """Undo `to_toml(as_tables(experiment))`."""
    try:
        return experiment_from(None, tables_in(text))
    except NOT_TOML as error:
        raise ConfigError(f"not a config: {_why_not(error)}") from error


def as_tables(experiment: Experiment) -> Tables:
    tables = {name: asdict(getattr(experiment, name)) for name in SECTIONS}
    method_fields = {key: value for key, value in tables["method"].items() if value is not None}
    tables["method"] = {"name": experiment.method.name, **method_fields}
    optimizer = tables["server"].pop("optimizer")
    tables["server"] |= {"optimizer": experiment.server.optimizer.name, **optimizer}
    return tables


def to_toml(value: Any) -> str:
    """A value, or tables of values, as TOML."""
    if isinstance(value, Mapping):
        lines = []
        for name, entry in value.items():
            if isinstance(entry, Mapping):
                lines += ["", f"[{name}]", to_toml(entry)]
            else:
                # Python names may have any letter, and TOML wants those in quotes.
                plain = re.fullmatch(r"[A-Za-z0-9_-]+", name)
                lines.append(f"{name if plain else to_toml(name)} = {to_toml(entry)}")
        return "\n".join(lines).strip()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(to_toml(entry) for entry in value)}]"
    if isinstance(value, str):
        # A JSON string is a TOML string, except that JSON leaves some invisible characters bare.
        return "".join(map(_toml_char, json.dumps(value, ensure_ascii=False)))
    raise TypeError(f"{type(value).__name__} has no place in a config file")


def _toml_char(char: str) -> str:
    if char.isprintable() or 0xD800 <= ord(char) < 0xE000:  # TOML cannot escape a lone surrogate
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def describe_method(method: type[Method]) -> dict[str, Any]:
    hints = get_type_hints(method)
    return {
        "name": method.name,
        "idea": (method.__doc__ or "").strip().splitlines()[0],
        "equation": method.equation,
        "cost": asdict(method.cost),
        "published": {dataset: dict(values) for dataset, values in method.published.items()},
        "fields": [
            {"name": field.name, "default": field.default, "type": describe_type(hints[field.name])}
            for field in fields(method)
        ],
    }
