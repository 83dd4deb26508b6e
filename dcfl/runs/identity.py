"""Decides which settings make two runs different experiments: a table of all keys of the config.

Resuming, comparing, grouping and sharing the cells of a reproduction all use this one table;
`groups` also compares the content of the user's images, split and initial weights and the source of
the user's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from dcfl.config import Tables, as_of_old, as_tables, experiment_from, is_gone
from dcfl.methods import METHODS
from dcfl.server.optimizers import OPTIMIZERS

Kind = Literal[
    "result",  # changes numbers, if only their last bits
    "place",  # where and how the work is done; does not change numbers
    "seed",  # runs that differ only in seeds repeat one experiment
]
Settings = dict[str, Any]  # by dotted key
BUILT_IN = "built in"  # stands in for the hash that the user's own code has

# Without [method] and [server]: their fields depend on the choice by name, and all change numbers.
KINDS: dict[str, Kind] = {
    "data.dataset": "result",
    "data.path": "place",
    "data.clients": "result",
    "data.partition": "result",  # of a file, its content: the hash is among the facts of a run
    "data.alpha": "result",
    "data.per_client": "result",
    "data.min_size": "result",
    "data.seed": "seed",
    "data.holdout": "result",
    "data.group": "result",
    "data.train_images": "result",
    "data.classes": "result",
    "data.test_images": "result",
    "data.crop": "result",
    "data.flip": "result",
    "data.rotation": "result",
    "data.cutout": "result",
    "data.image_size": "result",
    "data.fit": "result",
    "data.window": "result",
    "data.broken": "result",
    "data.class_names": "result",
    "data.mean": "result",
    "data.std": "result",
    "model.name": "result",
    "model.width": "result",
    "model.norm": "result",
    "model.head": "result",
    "model.weights": "place",  # the file may move: its hash is among the facts of a run
    "model.weights_skip": "result",
    "model.freeze": "result",
    "training.epochs": "result",
    "training.batch_size": "result",
    "training.lr": "result",
    "training.lr_decay": "result",
    "training.lr_decay_per": "result",
    "training.momentum": "result",
    "training.weight_decay": "result",
    "training.decay_norm_and_bias": "result",
    "training.max_grad_norm": "result",
    "training.head_epochs": "result",
    "federation.rounds": "result",
    "federation.participation": "result",
    "federation.seed": "seed",
    "federation.deadline": "result",  # late clients are left out
    "federation.minimum_replies": "result",
    "federation.personal": "result",
    "federation.evaluate_every": "result",  # of MAX and EMA, though not of the weights
    "federation.patience": "result",
    "federation.target_accuracy": "result",
    "federation.choose_by": "place",  # says what data.holdout decides
    "engine.name": "place",  # engines agree to the last bit
    "engine.workers": "place",
    "engine.threads": "result",  # changes the order of sums
    # A name such as "auto" or "cuda:1" does not identify the hardware, and CPU and GPU differ only
    # in rounding, as two versions of torch do: it is the same experiment. Bits do differ, so a run
    # resumes only on the kind of device it was begun on (`start.require_resumable`).
    "engine.device": "place",
    "engine.workers_per_device": "place",
    "engine.precision": "result",
    "engine.compile": "result",
    "engine.memory_budget": "place",
    "privacy.clip": "result",
    "privacy.noise": "result",
    "privacy.epsilon": "result",
    "privacy.delta": "result",
    "privacy.secret": "result",
    "output.dir": "place",
    "output.checkpoint": "place",
    "output.report": "place",
    "output.keep_best": "place",
    "output.keep_checkpoint": "place",
    "output.trackers": "place",
    "faults.crash": "result",
    "faults.memory": "result",
    "faults.exit": "result",
    "faults.hang": "result",
    "attack.kind": "result",
    "attack.share": "result",
    "attack.strength": "result",
}


class Difference(NamedTuple):
    key: str
    first: Any
    second: Any


def kind_of(key: str) -> Kind:
    """Unknown keys, from other versions of dcfl, may change numbers too."""
    return KINDS.get(key, "result")


def flat(tables: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Flatten tables into dotted keys, in order."""
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def complete(settings: Mapping[str, Any]) -> Settings:
    """Add the default of every missing key, because an older version may have written the settings.
    Lists, which files hold, become tuples."""
    completed = {**defaults(settings), **_of_old(settings), **settings}
    for key in [key for key in completed if is_gone(*key.partition(".")[::2], completed[key])]:
        del completed[key]
    if not str(completed["model.head"]).startswith("side"):  # then it plays no part
        completed.pop("method.embedding", None)
    if completed["data.seed"] == "federation":
        completed["data.seed"] = completed["federation.seed"]
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in completed.items()
    }


def _of_old(settings: Mapping[str, Any]) -> Settings:
    tables: Tables = {"data": {"dataset": settings.get("data.dataset", "digits")}}
    if "data.group" in settings:
        tables["data"]["group"] = settings["data.group"]
    return flat(as_of_old(tables))


def defaults(settings: Mapping[str, Any]) -> Settings:
    """The defaults of an experiment with this method, server optimiser and data set."""
    method, optimizer = str(settings.get("method.name")), str(settings.get("server.optimizer"))
    return _defaults(
        str(settings.get("data.dataset", "digits")),
        method if method in METHODS else "",
        optimizer if optimizer in OPTIMIZERS else "",
    )


@cache
def _defaults(dataset: str, method: str, optimizer: str) -> Settings:
    chosen: Tables = {"data": {"dataset": dataset}}
    if method:
        chosen["method"] = {"name": method}
    if optimizer:
        chosen["server"] = {"optimizer": optimizer}
    values = flat(as_tables(experiment_from(None, chosen)))
    if not method:  # a user-defined method, whose fields only its file knows
        values = {key: value for key, value in values.items() if not key.startswith("method.")}
    return values


def of_kind(settings: Mapping[str, Any], *kinds: Kind) -> Settings:
    return {key: value for key, value in settings.items() if kind_of(key) in kinds}


def differences(
    first: Mapping[str, Any], second: Mapping[str, Any], *kinds: Kind
) -> list[Difference]:
    """The keys of these kinds in which two complete settings differ, in order."""
    return [
        Difference(key, first.get(key), second.get(key))
        for key in of_kind({**first, **second}, *kinds)
        if first.get(key) != second.get(key)
    ]
