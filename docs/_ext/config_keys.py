"""Every key of a config with type, default, meaning and whether it changes results."""

import re
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from commented_fields import meanings
from markdown_tables import key_table

from dcfl.config import CHOICES, SECTIONS, describe_type, to_toml
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.runs.identity import kind_of
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.settings import Key

HEAD = ("key", "default", "changes results", "type, meaning")
CHANGES = {"result": "yes", "place": "no", "seed": "seed"}
ABOUT = {  # of each table, and where to read on
    "data": "What is trained on, and who owns it: [Data](../data.md).",
    "model": "The network: [Models](../model.md).",
    "training": "SGD on every client, with a fresh optimiser in each round.",
    "method": "The method by name, and its fields: [the methods](../methods.md). "
    "A field that a method does not have is refused.",
    "server": "How replies become the next model, and the fields of the optimiser.",
    "federation": "Rounds, and who takes part.",
    "engine": "Where clients train: [Speed](../speed.md), [Flower](../flower.md).",
    "privacy": "Clipping and noise: [Privacy](../privacy.md). Off unless `clip` is set.",
    "compression": "Fewer bytes per message: [Compression](../compression.md).",
    "output": "What a run leaves behind.",
    "faults": "Shares of a round's clients that fail on purpose, "
    "to test [reliability](../reliability.md).",
    "attack": "Clients that attack, for experiments: [robustness](../robustness.md).",
    "clock": "Virtual time: [a clock that repeats](../clock.md). Off unless `devices` is set.",
}


def page() -> str:
    return "\n\n".join(_table(name) for name in SECTIONS)


def _table(section: str) -> str:
    default = getattr(Experiment(), section)
    parts = [f"## `[{section}]`", ABOUT[section]]
    if section == "method":
        parts += [key_table(HEAD, [_choice("method", METHODS)]), *_method_tables()]
    elif section == "server":
        own = [field for field in fields(ServerSettings) if field.name != "optimizer"]
        rows = [row(default, field, "server") for field in own]
        parts += [key_table(HEAD, [*rows, _choice("server", OPTIMIZERS)]), *_optimizer_tables()]
    else:
        parts.append(key_table(HEAD, [row(default, field, section) for field in fields(default)]))
    return "\n\n".join(parts)


def _choice(section: str, known: dict[str, Any]) -> list[str]:
    key, default = CHOICES[section]
    names = ", ".join(f"`{to_toml(name)}`" for name in known)
    return _cells(f"{section}.{key}", "a name", to_toml(default), f"One of {names}.")


def _method_tables() -> list[str]:
    tables = []
    for method in METHODS.values():
        rows = [row(method(), field, "method") for field in fields(method)]
        if rows:
            tables += [f"### `{method.name}`", key_table(HEAD, rows)]
    return tables


def _optimizer_tables() -> list[str]:
    return [
        part
        for optimizer in OPTIMIZERS.values()
        if fields(optimizer)
        for part in (
            f"### `optimizer = {to_toml(optimizer.name)}`",
            key_table(HEAD, [row(optimizer(), field, "server") for field in fields(optimizer)]),
        )
    ]


def row(settings: Any, field: Field[Any], section: str) -> list[str]:
    key = f"{section}.{field.name}"
    meaning = meanings(type(settings)).get(field.name)
    if not meaning:
        raise ValueError(f"{key}: say in a comment beside the field what it means")
    kind = describe_type(get_type_hints(type(settings))[field.name])
    bounds = field.metadata.get("key", Key()).bounds
    kind += bounds and f", {bounds.removeprefix('be ').removeprefix('lie ')}"
    default = getattr(settings, field.name) if field.default is MISSING else field.default
    return _cells(key, kind, to_toml(default), meaning)


def _cells(key: str, kind: str, default: str, meaning: str) -> list[str]:
    kind = re.sub(r'"[^"]*"', lambda match: f"`{match[0]}`", f"{kind[0].upper()}{kind[1:]}")
    return [f"`{key}`", f"`{default}`", CHANGES[kind_of(key)], f"{kind}. {meaning}"]
