"""May a run go on from its checkpoint? With what it was begun with, or its bits would differ."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from dcfl.config import as_tables
from dcfl.data import Dataset, Partition
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment

# Where a run is carried on, and how often it is written down, plays no part in the result.
FREE = {"engine.name", "engine.workers", "engine.memory_budget", "output.dir", "output.checkpoint"}


def fingerprint(
    experiment: Experiment, dataset: Dataset, partition: Partition, own_model: bool
) -> dict[str, Any]:
    """What the bits of a run depend on, by key."""
    tables = as_tables(experiment)
    settings = {
        f"{section}.{key}": list(value) if isinstance(value, tuple) else value
        for section, table in tables.items()
        for key, value in table.items()
    }
    return {
        **{key: value for key, value in settings.items() if key not in FREE},
        "data": f"{dataset.fingerprint[:16]} {partition.sha256[:16]}",
        "model": "a module of the user's" if own_model else "built in",
        "torch": version("torch"),
    }


def require_same(begun_with: dict[str, Any], now: dict[str, Any], allowed: Collection[str]) -> None:
    """Raise ConfigError that names every key that differs and is not allowed to."""
    keys = sorted(begun_with.keys() | now.keys())
    for key in allowed:
        if key not in keys:
            raise ConfigError(f"--allow {key}: there is no such key; known: {', '.join(keys)}")
    different = [key for key in keys if begun_with.get(key) != now.get(key)]
    refused = [key for key in different if key not in allowed]
    if refused:
        changes = "; ".join(
            f"{key} was {begun_with.get(key)!r} and is {now.get(key)!r}" for key in refused
        )
        raise ConfigError(
            f"the run was begun with something else: {changes}. It would not end as it should; "
            f"--allow {refused[0]} goes on all the same"
        )
