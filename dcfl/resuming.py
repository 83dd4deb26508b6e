"""May a run go on from its checkpoint? With what it was begun with, or its bits would differ."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import version
from typing import Any

from dcfl.config import as_tables
from dcfl.data import Dataset, Partition
from dcfl.data.catalogue import OWN
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.identity import complete, differences, flat, of_kind


def fingerprint(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    own_model: bool,
    device: str,
) -> dict[str, Any]:
    """What the bits of a run depend on, by key: settings, and facts that no setting tells."""
    facts = {
        "data": f"{dataset.fingerprint[:16]} {partition.sha256[:16]}",
        "model": "a module of the user's" if own_model else "built in",
        "torch": version("torch"),
    }
    if experiment.engine.name != "flower":  # SuperNodes have devices of their own
        facts["device"] = device
    settings = of_kind(flat(as_tables(experiment)), "result", "seed")
    return {**settings, **facts}


def require_same(begun_with: dict[str, Any], now: dict[str, Any], allowed: Collection[str]) -> None:
    """Raise ConfigError that names every key that differs and is not allowed to."""
    # A checkpoint of an older version may lack a fact: nobody knows that it was another one.
    known = {key: value for key, value in now.items() if "." not in key} | begun_with
    before, after = _without_folders(complete(known)), _without_folders(complete(now))
    keys = sorted(of_kind({**before, **after}, "result", "seed"))
    for key in allowed:
        if key not in keys:
            raise ConfigError(f"--allow {key}: there is no such key; known: {', '.join(keys)}")
    different = sorted(differences(before, after, "result", "seed"))
    refused = [one for one in different if one.key not in allowed]
    if refused:
        changes = "; ".join(f"{key} was {was!r} and is {now!r}" for key, was, now in refused)
        raise ConfigError(
            f"the run was begun with something else: {changes}. It would not end as it should; "
            f"--allow {refused[0].key} goes on all the same"
        )


def _without_folders(settings: dict[str, Any]) -> dict[str, Any]:
    """Pictures of one's own may have been moved: the fact `data` tells whether they are others."""
    kind, _, _ = str(settings["data.dataset"]).partition(":")
    return {**settings, "data.dataset": kind} if kind in OWN else settings
