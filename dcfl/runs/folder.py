"""The run folder: what a run leaves on disk, and how it is read back.

config.toml        the resolved settings        partition.npz      who owned which sample
environment.json   versions and machine         model.safetensors  the final weights
rounds.jsonl       a row per round              summary.json       the result
clients.jsonl      a row per client and round   report.html        all of it as a page
checkpoint-*       what `dcfl resume` goes on from, while the run has not ended, and the best
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from dcfl import config
from dcfl import tensors as named
from dcfl.data.augment import Preparation
from dcfl.errors import CheckpointError, RunFolderError, RunMissing
from dcfl.experiment import Experiment
from dcfl.messages import Tensors
from dcfl.models import FeatureModel, build_model
from dcfl.runs.rows import (
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
from dcfl.runs.rows import Row as Row
from dcfl.system.locks import LOCK
from dcfl.system.storage import (
    PARTIAL,
    storage,
    strict_json,
)
from dcfl.system.tensor_files import read_stored

LOGS = ("rounds.jsonl", "clients.jsonl")
FILES = {
    *LOGS, "config.toml", "environment.json", "partition.npz", "model.safetensors", "summary.json"
}  # fmt: skip


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
