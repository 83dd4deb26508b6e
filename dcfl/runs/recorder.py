"""Writes a run folder: whole files at once, rows as rounds end."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dcfl import config
from dcfl import tensors as named
from dcfl.data import Dataset, Partition
from dcfl.engines.placement import Placement
from dcfl.errors import CheckpointError
from dcfl.experiment import Experiment
from dcfl.messages import Tensors
from dcfl.runs.folder import LOGS, require_unused, require_utf8
from dcfl.runs.rows import Row
from dcfl.server import ClientReport
from dcfl.system.locks import LOCK, lock, sign
from dcfl.system.storage import (
    open_to_append,
    remove_partial,
    replacing,
    storage,
    strict_json,
    write_whole,
)
from dcfl.system.tensor_files import write_stored


class Recorder:
    """Writes one run folder. Whole files appear at once; rows are appended as rounds end.

    It holds the folder's lock until it is closed.
    """

    def __init__(self, folder: Path, again: bool = False) -> None:
        """`again`: for a run that is in the folder already."""
        require_utf8(folder)
        if not again and not (folder / LOCK).exists():  # else: first of all, who holds it?
            require_unused(folder)
            with storage(folder):
                folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.site_names = folder, tuple[str, ...]()
        self._lock = lock(folder)
        try:
            if not again:
                require_unused(folder)  # somebody may have come and gone in between
            sign(self._lock)
            remove_partial(folder)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def lengths(self) -> dict[str, int]:
        """Of the logs, in bytes; they are on the disk when this ends."""
        found = {}
        for name in LOGS:
            path = self.folder / name
            with storage(path), open_to_append(path, "ab") as stream:
                os.fsync(stream.fileno())
                found[name] = stream.tell()
        return found

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Back to how long the logs were: what came after is done again."""
        for name in LOGS:
            path = self.folder / name
            wanted = lengths.get(name, 0)
            with storage(path), open_to_append(path, "ab") as stream:
                if stream.tell() < wanted:
                    raise CheckpointError(f"{path}: shorter than at the checkpoint")
                stream.truncate(wanted)

    def start(
        self,
        experiment: Experiment,
        dataset: Dataset,
        partition: Partition,
        placement: Placement,
        code: Mapping[str, str],
    ) -> None:
        """`code`: what is known about code of the user's, see `resuming.own_code`."""
        text = config.to_toml(config.as_tables(experiment)) + "\n"
        write_whole(self.folder / "config.toml", text)
        environment = {**_environment(experiment, placement), **code}
        if ":" in dataset.name:  # pictures of one's own are known by what is in them
            environment["data"] = dataset.fingerprint[:16]
        self._write_json("environment.json", environment)
        labels = dataset.train.labels.cpu().numpy()
        counts = partition.counts(labels, dataset.classes)
        with replacing(self.folder / "partition.npz") as partial:
            partition.save(partial, counts, dataset.class_names)

    def round(
        self, row: Row, clients: Sequence[ClientReport], own_accuracies: Sequence[float | None]
    ) -> None:
        """`own_accuracies`: of the new global model on each of the clients' own mix of classes."""
        self._append("rounds.jsonl", [row])
        self._append(
            "clients.jsonl",
            [
                {
                    "round": row["round"],
                    **vars(client),
                    **({"site": self.site_names[client.client]} if self.site_names else {}),
                    "own_accuracy": own,
                }
                for client, own in zip(clients, own_accuracies, strict=True)
            ],
        )

    def finish(self, weights: Tensors, model: Mapping[str, Any], summary: Row) -> None:
        contiguous = {name: weights[name].cpu().contiguous() for name in sorted(weights)}
        checksum = named.checksum(contiguous, strict_json(dict(model)))
        # One text: safetensors writes several in any order, and equal runs have equal files.
        metadata = {"dcfl": strict_json({**model, "checksum": checksum})}
        write_stored(self.folder / "model.safetensors", contiguous, metadata)
        self._write_json("summary.json", summary)

    def _write_json(self, name: str, value: Row) -> None:
        write_whole(self.folder / name, strict_json(value, indent=2) + "\n")

    def _append(self, name: str, rows: Iterable[Row]) -> None:
        path = self.folder / name
        with storage(path), open_to_append(path, "a") as stream:
            stream.writelines(strict_json(row) + "\n" for row in rows)


def _environment(experiment: Experiment, placement: Placement) -> Row:
    packages = ("dcfl", "torch", "numpy", "pydantic", "safetensors")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "device": placement.name,
        "gpus": torch.cuda.device_count(),
        "workers": len(placement.devices),
        "workers_because": placement.reason,
        "threads": experiment.engine.threads,
        "packages": {name: version(name) for name in packages},
    }
