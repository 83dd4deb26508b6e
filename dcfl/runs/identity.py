"""What makes two runs the same: one definition for resuming, comparing, grouping and sharing cells.

The kind of each key is declared beside it. What the user brought along counts by its content:
images, split, initial weights and code, wherever they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from dcfl.config import CHOICES, DEFAULT, SECTIONS, Tables, as_tables, experiment_from
from dcfl.methods import METHODS
from dcfl.runs.folder import RecordedRun
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.settings import Kind, kind_of_field

Identity = dict[str, Any]  # settings by dotted key, and facts
BUILT_IN = "built in"  # stands in for the hash that the user's own code has

# Without [method] and [server]: their fields depend on the choice by name, and all change numbers.
KINDS: dict[str, Kind] = {
    f"{section}.{field.name}": kind_of_field(field)
    for section in SECTIONS
    if section not in CHOICES
    for field in fields(getattr(DEFAULT, section))
}
# Hashes of what the user brought along, and the setting that each of them stands for.
CONTENTS = {
    "data": "data.dataset",
    "split": "data.partition",
    "devices": "clock.devices",
    "availability": "clock.availability",
    "weights": "model.weights.sha256",
    "method": "method.source",
    "model": "model.source",
}


class Difference(NamedTuple):
    key: str
    first: Any
    second: Any


def kind_of(key: str) -> Kind:
    """Unknown keys, from other versions of dcfl, may change numbers too."""
    return KINDS.get(key, "result")


def identity(described: Mapping[str, Any]) -> Identity:
    """All that decides the numbers of a run. `described`: its settings by dotted key, and facts,
    whose names have no dot: those of CONTENTS, and of the machine where bits matter."""
    settings = complete({key: value for key, value in described.items() if "." in key})
    facts = {key: fact for key, fact in described.items() if "." not in key and fact is not None}
    files = ("data", "split", "devices", "availability")
    for key in (CONTENTS[fact] for fact in files if fact in facts):
        settings[key] = str(settings[key]).partition(":")[0]  # the hash replaces the path
    return {**of_kind(settings, "result", "seed"), **facts}


def of_run(run: RecordedRun) -> Identity:
    built_in = {"method": BUILT_IN, "model": BUILT_IN}
    contents = {fact: run.environment.get(fact, built_in.get(fact)) for fact in CONTENTS}
    return {**flat(run.config), **contents}


def across_seeds(run: RecordedRun) -> Identity:
    """The identity that a run shares with those that repeat it with other seeds."""
    described = of_run(run)
    if run.holdout:  # what is left to train on, and so its hash, is drawn by the seed
        described["data"] = None
    return of_kind(identity(described), "result")


def flat(tables: Mapping[str, Mapping[str, Any]]) -> Identity:
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def complete(settings: Mapping[str, Any]) -> Identity:
    """Add the default of every missing key: another version may have written the settings. Lists,
    which files hold, become tuples."""
    completed = {**defaults(settings), **settings}
    if not str(completed["model.head"]).startswith("side"):  # then it plays no part
        completed.pop("method.embedding", None)
    if completed["data.seed"] == "federation":
        completed["data.seed"] = completed["federation.seed"]
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in completed.items()
    }


def defaults(settings: Mapping[str, Any]) -> Identity:
    method, optimizer = str(settings.get("method.name")), str(settings.get("server.optimizer"))
    return _defaults(
        str(settings.get("data.dataset", "digits")),
        method if method in METHODS else "",
        optimizer if optimizer in OPTIMIZERS else "",
    )


@cache
def _defaults(dataset: str, method: str, optimizer: str) -> Identity:
    chosen: Tables = {"data": {"dataset": dataset}}
    if method:
        chosen["method"] = {"name": method}
    if optimizer:
        chosen["server"] = {"optimizer": optimizer}
    values = flat(as_tables(experiment_from(None, chosen)))
    if not method:  # a user-defined method, whose fields only its file knows
        values = {key: value for key, value in values.items() if not key.startswith("method.")}
    return values


def of_kind(settings: Mapping[str, Any], *kinds: Kind) -> Identity:
    return {key: value for key, value in settings.items() if kind_of(key) in kinds}


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(key, first.get(key), second.get(key))
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    ]
