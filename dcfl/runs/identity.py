"""What makes two runs the same: of every key of the config, what it is about.

Resuming, comparing, grouping and sharing the cells of a reproduction all go by this one table;
`groups` also looks at the content of one's own pictures and the source of one's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from dcfl.config import Tables, as_tables, experiment_from, is_gone
from dcfl.methods import METHODS
from dcfl.server.optimizers import OPTIMIZERS

Kind = Literal[
    "result",  # it changes numbers, were it only their last bits
    "place",  # where and how the work is done: the numbers are the same
    "seed",  # luck: runs that differ in nothing else are repetitions of one experiment
]
Settings = dict[str, Any]  # by dotted key
BUILT_IN = "built in"  # where code of the user's has a hash of its source

# The fields of [method] and [server] depend on what is chosen by name; all of them change numbers.
KINDS: dict[str, Kind] = {
    "data.dataset": "result",
    "data.path": "place",
    "data.clients": "result",
    "data.partition": "result",
    "data.alpha": "result",
    "data.per_client": "result",
    "data.min_size": "result",
    "data.seed": "seed",
    "data.holdout": "result",
    "data.crop": "result",
    "data.flip": "result",
    "data.rotation": "result",
    "data.cutout": "result",
    "data.image_size": "result",
    "data.fit": "result",
    "data.broken": "result",
    "data.class_names": "result",
    "data.mean": "result",
    "data.std": "result",
    "model.name": "result",
    "model.norm": "result",
    "model.head": "result",
    "training.epochs": "result",
    "training.batch_size": "result",
    "training.lr": "result",
    "training.lr_decay": "result",
    "training.lr_decay_per": "result",
    "training.momentum": "result",
    "training.weight_decay": "result",
    "training.decay_norm_and_bias": "result",
    "training.max_grad_norm": "result",
    "federation.rounds": "result",
    "federation.participation": "result",
    "federation.seed": "seed",
    "federation.deadline": "result",  # who is late is left out
    "federation.minimum_replies": "result",
    "engine.name": "place",  # engines agree to the last bit
    "engine.workers": "place",
    "engine.threads": "result",  # sums are taken in another order
    # A name such as "auto" or "cuda:1" does not say what did the work, and CPU and GPU differ in
    # rounding only, as two versions of torch do: neither makes another experiment. Bits are another
    # matter, so a run is resumed only on the kind of device that it was begun on
    # (`start.require_resumable`).
    "engine.device": "place",
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
    one: Any
    other: Any


def kind_of(key: str) -> Kind:
    """A key of another version of dcfl, which is not in the table, may change numbers too."""
    return KINDS.get(key, "result")


def flat(tables: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Tables as dotted keys, in their order."""
    return {
        f"{section}.{key}": value
        for section, table in tables.items()
        for key, value in table.items()
    }


def complete(settings: Mapping[str, Any]) -> Settings:
    """With the default of every key that is missing: the settings may be those of a run that was
    made before there was such a key. Lists, as files have them, become tuples again."""
    completed = {**defaults(settings), **settings}
    for key in [key for key in completed if is_gone(*key.partition(".")[::2], completed[key])]:
        del completed[key]
    if completed["data.seed"] == "federation":
        completed["data.seed"] = completed["federation.seed"]
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in completed.items()
    }


def defaults(settings: Mapping[str, Any]) -> Settings:
    """Of every key that an experiment with this method, server optimiser and data set has."""
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
    if not method:  # one of the user's, whose fields only its file knows
        values = {key: value for key, value in values.items() if not key.startswith("method.")}
    return values


def of_kind(settings: Mapping[str, Any], *kinds: Kind) -> Settings:
    return {key: value for key, value in settings.items() if kind_of(key) in kinds}


def differences(one: Mapping[str, Any], other: Mapping[str, Any], *kinds: Kind) -> list[Difference]:
    """The keys of these kinds in which two complete settings are not the same, in their order."""
    return [
        Difference(key, one.get(key), other.get(key))
        for key in of_kind({**one, **other}, *kinds)
        if one.get(key) != other.get(key)
    ]
