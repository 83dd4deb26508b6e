"""The run folder: what a run leaves on disk, and how it is read back.

config.toml        the resolved settings        partition.npz      who owned which sample
environment.json   versions and machine         model.safetensors  the final weights
rounds.jsonl       a row per round              summary.json       the result
clients.jsonl      a row per client and round   report.html        all of it as a page
checkpoint-*       what `dcfl resume` goes on from, while the run has not ended, and the best
"""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from dcfl import config
from dcfl import weights as named
from dcfl.data import Dataset, Partition
from dcfl.data.augment import Preparation
from dcfl.errors import CheckpointError, RunFolderError, RunMissing
from dcfl.experiment import Experiment
from dcfl.formats import (
    ENVIRONMENT,
    SETTINGS,
    ClientRow,
    Known,
    ModelShape,
    RoundRow,
    Summary,
    Tables,
    checked,
    damaged,
    parsed,
    read_partition,
)
from dcfl.formats import Row as Row
from dcfl.messages import Tensors
from dcfl.models import FeatureModel, build_model
from dcfl.server import ClientReport
from dcfl.simulation.placement import Placement
from dcfl.storage import (
    LOCK,
    PARTIAL,
    lock,
    open_to_append,
    remove_partial,
    replacing,
    sign,
    storage,
    strict_json,
    write_whole,
)
from dcfl.tensor_files import read_stored, write_stored

LOGS = ("rounds.jsonl", "clients.jsonl")
FILES = {
    *LOGS, "config.toml", "environment.json", "partition.npz", "model.safetensors", "summary.json"
}  # fmt: skip


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


def require_unused(folder: Path) -> None:
    """A run needs a folder that does not exist yet or is empty."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        raise RunFolderError(f"{nearest}: not a folder")
    with storage(folder):
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if any(name != LOCK and not name.endswith(PARTIAL) for name in names):
            raise RunFolderError(f"{folder} is not empty: choose another folder with --out")


def require_own(folder: Path) -> None:
    """A folder in a run's folder, which may have come from somebody else."""
    if folder.is_symlink():
        raise RunFolderError(f"{folder} is a link, which may lead anywhere: remove it")


def require_utf8(folder: Path) -> None:
    """safetensors opens no other path: the model could be written and not be read."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        raise RunFolderError(f"{folder}: the name is not valid UTF-8, choose another") from error


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


@dataclass(frozen=True)
class RecordedRun:
    """A run folder, read."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> RecordedRun:
        if not (folder / "config.toml").is_file():
            raise RunMissing(f"{folder} is not a run folder: there is no config.toml in it")
        return cls(folder)

    @cached_property
    def config_text(self) -> str:
        return (self.folder / "config.toml").read_text("utf-8", "surrogateescape")

    @cached_property
    def config(self) -> config.Tables:
        path = self.folder / "config.toml"
        tables = config.read_toml(path, "surrogateescape")
        for name in ("data", "method", "federation"):
            if name not in tables:
                raise RunFolderError(f"{path} has no [{name}]")
        checked(Tables, tables, path)
        return {
            name: {k: v for k, v in table.items() if not config.is_gone(name, k, v)}
            for name, table in tables.items()
        }

    @property
    def experiment(self) -> Experiment:
        """As it was begun, in the folder where it is now."""
        tables = config.merge(self.config, {"output": {"dir": str(self.folder.resolve())}})
        return config.load_experiment(None, tables)

    @cached_property
    def rounds(self) -> list[Row]:
        return self._rows("rounds.jsonl", RoundRow)

    @cached_property
    def clients(self) -> list[Row]:
        return self._rows("clients.jsonl", ClientRow)

    @cached_property
    def environment(self) -> Row:
        path = self.folder / "environment.json"
        return checked(ENVIRONMENT, self._json(path), path)

    @cached_property
    def summary(self) -> Row:
        """Empty while the run has not ended."""
        path = self.folder / "summary.json"
        return checked(Summary, self._json(path), path)

    @cached_property
    def partition_counts(self) -> NDArray[np.int64]:
        """Samples per client and class."""
        return self._of_partition("counts")

    @cached_property
    def class_names(self) -> list[str]:
        return [str(name) for name in self._of_partition("class_names")]

    @property
    def partition_sha256(self) -> str:
        """Which split the run was trained on; empty if it left none behind."""
        return str(self._partition.get("sha256", ""))

    def _of_partition(self, key: str) -> NDArray[Any]:
        if not self._partition:
            raise RunFolderError(f"{self.folder} has no partition.npz")
        return self._partition[key]

    @cached_property
    def _partition(self) -> dict[str, NDArray[Any]]:
        path = self.folder / "partition.npz"
        return read_partition(path) if path.is_file() else {}

    def _rows(self, name: str, kind: type[Known]) -> list[Row]:
        path = self.folder / name
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        # A run that is being written, or was killed, may end in half a line: that row is not there.
        whole_lines = text[: text.rfind("\n") + 1].splitlines()
        return [checked(kind, parsed(line, path), path) for line in whole_lines]

    def _json(self, path: Path) -> Row:
        return parsed(path.read_bytes(), path) if path.is_file() else {}


def used(row: Row) -> int:
    """How many replies a round's new model was made of; rows once told valid ones alone."""
    count: int = row["used" if "used" in row else "ok"]
    return count


def load_model(run_folder: str | Path) -> FeatureModel:
    """The trained model of a finished run, in evaluation mode, on the CPU.

    It carries `class_names` and `preparation`, which turns uint8 pixels into its inputs. Trained
    with `model.norm = "batch-nostats"`, it wants batches that mix the classes, not single images.
    """
    path = Path(run_folder) / "model.safetensors"
    require_utf8(path)
    if not path.is_file():
        known = Path(run_folder).is_dir()
        reason = "holds no model.safetensors: has the run finished?" if known else "no such folder"
        raise RunMissing(f"{run_folder}: {reason}")
    try:
        weights, metadata = read_stored(path)
    except CheckpointError as error:
        raise damaged(path, str(error.__cause__)) from error
    shape = parsed(metadata.get("dcfl", "{}"), path)
    _require_whole(path, weights, shape)
    if "settings" not in shape:
        raise RunFolderError(
            f"{path} holds the weights of a module of your own: build it and load them with "
            f"safetensors.torch.load_file"
        )
    model = _rebuilt(checked(ModelShape, shape, path), weights, path)
    model.load_state_dict(weights)
    model.class_names = tuple(shape["class_names"])
    model.preparation = Preparation(tuple(shape["mean"]), tuple(shape["std"]))
    return model.eval()


def _require_whole(path: Path, weights: Tensors, shape: Row) -> None:
    """By the file's own checksum, and by the hash in summary.json if there is one."""
    own = shape.get("checksum")
    if own is not None:
        ordered = {name: weights[name] for name in sorted(weights)}
        described = {key: value for key, value in shape.items() if key != "checksum"}
        if own != named.checksum(ordered, strict_json(described)):
            raise damaged(path, "its checksum is another one")
    noted = RecordedRun(path.parent).summary.get("weights_sha256")
    if noted and noted != named.sha256(weights):
        raise damaged(path, "summary.json has the hash of other weights")
    if not own and not noted:
        warnings.warn(
            f"{path}: neither the file nor a summary.json beside it has a hash of the weights: "
            f"nobody would notice damage",
            stacklevel=3,
        )


def _rebuilt(shape: Row, weights: Tensors, path: Path) -> FeatureModel:
    """The model of that shape, if its tensors are those of the file."""
    size = (shape["channels"], shape["size"], shape["classes"])
    try:
        settings = SETTINGS.validate_python(shape["settings"])
        with torch.device("meta"):  # takes no memory, whatever the size
            expected = build_model(settings, *size, seed=0).state_dict()
    except (ValidationError, ValueError, RuntimeError) as error:
        raise damaged(path, f"settings: {error}") from error

    def described(tensors: Tensors) -> dict[str, tuple[torch.dtype, torch.Size]]:
        return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    if described(expected) != described(weights):
        raise damaged(path, "its tensors are not those of the model that it names")
    return build_model(settings, *size, seed=0)
