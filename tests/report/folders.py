"""Small run folders in the documented format, written without training anything."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.config import as_tables, to_toml
from dcfl.evaluation import ema
from dcfl.experiment import Experiment
from dcfl.runs.folder import RecordedRun

TEN = tuple(str(digit) for digit in range(10))
WEIGHTS_SHA256 = "5" * 64


def write_run(
    folder: Path,
    accuracies: Sequence[float] = (20.0, 60.0, 50.0),
    *,
    method: str = "fedavg",
    seed: int = 0,
    finished: bool = True,
    settings: Mapping[str, Any] | None = None,  # by dotted name
    class_names: Sequence[str] = TEN,
    counts: NDArray[np.int64] | None = None,
    partition_sha256: str = "a" * 64,
    clients: Sequence[Mapping[str, Any]] = (),
    row_changes: Mapping[int, Mapping[str, Any]] | None = None,  # by round
    recalls: Sequence[Mapping[str, Any]] = (),
    scores: Mapping[str, Any] | None = None,  # more of the summary
) -> RecordedRun:
    folder.mkdir(parents=True)
    counts = some_counts(4, len(class_names)) if counts is None else counts
    tables: dict[str, dict[str, Any]] = {
        "data": {
            "dataset": "digits",
            "clients": len(counts),
            "partition": "dirichlet-balanced",
            "alpha": 0.3,
            "seed": 0,
        },
        "model": {"name": "cnn"},
        "method": {"name": method},
        "federation": {"rounds": max(len(accuracies), 1), "participation": 0.5, "seed": seed},
        "output": {"dir": str(folder)},
    }
    for key, value in (settings or {}).items():
        section, _, name = key.partition(".")
        tables.setdefault(section, {})[name] = value
    (folder / "config.toml").write_text(to_toml(tables) + "\n", "utf-8", "surrogateescape")
    rows = [
        {**row(number, accuracies), **(row_changes or {}).get(number, {})}
        for number in range(1, len(accuracies) + 1)
    ]
    _write_rows(folder / "rounds.jsonl", rows)
    _write_rows(folder / "clients.jsonl", clients)
    (folder / "environment.json").write_text(json.dumps({"python": "3.11", "cores": 2}))
    np.savez_compressed(
        folder / "partition.npz",
        offsets=np.concatenate([[0], np.cumsum(counts.sum(axis=1))]),
        indices=np.arange(counts.sum(), dtype=np.int32),
        counts=counts,
        class_names=np.array(class_names),
        sha256=np.array(partition_sha256),
    )
    if finished:
        summary = {
            "method": method,
            "dataset": "digits",
            "rounds": len(rows),
            "seconds": sum(row["seconds"] for row in rows),
            "weights_sha256": WEIGHTS_SHA256,
            **({"recalls": list(recalls)} if recalls else {}),
            **(scores or {}),
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return RecordedRun.open(folder)


def as_recorded(experiment: Experiment) -> str:
    """config.toml of a run on the digits: with numbers instead of "auto"."""
    data = replace(experiment.data, clients=experiment.data.population)
    federation = replace(experiment.federation, participation=experiment.federation.share)
    return to_toml(as_tables(replace(experiment, data=data, federation=federation))) + "\n"


def row(number: int, accuracies: Sequence[float]) -> dict[str, Any]:
    """The rounds.jsonl row of round `number`, counted from 1."""
    so_far = accuracies[:number]
    return {
        "round": number,
        "accuracy": so_far[-1],
        "max_accuracy": max(so_far),
        "ema_accuracy": ema(so_far),
        "client_accuracy": so_far[-1] - 1.0,
        "max_client_accuracy": max(so_far) - 1.0,
        "ema_client_accuracy": ema(so_far) - 1.0,
        "worst_decile_accuracy": so_far[-1] / 10,
        "loss": 2.0 / number,
        "train_loss": 1.0,
        "seconds": 1.5,
        "bytes_up": 1_000_000,
        "bytes_down": 2_000_000,
        "sampled": 2,
        "ok": 2,
        "used": 2,
        "failed": 0,
        "rejected": 0,
    }


def some_counts(clients: int, classes: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    mixes = rng.dirichlet(np.full(classes, 0.3), size=clients)
    return np.stack([rng.multinomial(60, mix) for mix in mixes])


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
