"""What a run goes on from: one whole file per checkpoint, with a checksum of its own.

A checkpoint is the server's state, the rounds of the clients' memories, how long the logs were, and
what the run was begun with. The commit is one `os.replace`; the two newest stay, and the best.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from dcfl import tensors as named
from dcfl.engines.memories import Index
from dcfl.errors import CheckpointError
from dcfl.server import ServerState
from dcfl.system.storage import replacing, storage, strict_json
from dcfl.system.tensor_files import read_tensors, write_tensors

CHECKPOINT_SECONDS = 10.0  # between two, with output.checkpoint = "auto"
KEPT = 2  # the newest may be damaged
BEST = "checkpoint-best.safetensors"


@dataclass(frozen=True)
class Progress:
    """How far a run had come at the end of a round."""

    run: str  # its id
    round: int
    seconds: float  # so far
    accuracy: float
    memories: dict[str, int]  # the round of each client's memory, by client
    lengths: dict[str, int]  # of the logs, in bytes
    begun_with: dict[str, Any]  # see `fingerprint.fingerprint`
    again: int = 0  # rounds that were done a second time

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    @property
    def index(self) -> Index:
        return {int(client): round for client, round in self.memories.items()}


class Checkpoint(NamedTuple):
    state: ServerState
    progress: Progress


class Checkpoints:
    """Those in one run folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._indexes: dict[Path, Index] = {}  # of what was written or read here
        self._best = -1.0
        self._saved_at = time.monotonic()  # the run's first rounds come soon after

    def begin_if_due(self, every: int | Literal["auto"], round: int) -> bool:
        """Whether the round gets a checkpoint, from which the clock then starts anew. With "auto" a
        run that is killed loses some seconds, and none is slowed down by it."""
        now = time.monotonic()
        if every == "auto":
            due = now - self._saved_at > CHECKPOINT_SECONDS
        else:
            due = every > 0 and round % every == 0
        if due:
            self._saved_at = now
        return due

    def paths(self) -> list[Path]:
        """The oldest first."""
        return sorted(self._folder.glob("checkpoint-[0-9]*.safetensors"), key=_by_round)

    def _path(self, round: int) -> Path:
        return self._folder / f"checkpoint-{round:06d}.safetensors"

    def write(self, checkpoint: Checkpoint) -> list[Index]:
        """Returns which memories all checkpoints together need."""
        state, progress = checkpoint.state, checkpoint.progress
        tensors = named.together(weights=state.weights, shared=state.shared, slots=state.slots)
        text = strict_json(asdict(progress))
        path = self._path(progress.round)
        write_tensors(path, tensors, text)
        self._indexes[path] = progress.index
        if progress.accuracy > self._best:
            self._best = progress.accuracy
            self._keep_as_best(path)
        for old in self.paths()[:-KEPT]:
            with storage(old):
                old.unlink()
            self._indexes.pop(old, None)
        return self.indexes

    def _keep_as_best(self, path: Path) -> None:
        with replacing(self._folder / BEST) as partial:
            partial.unlink(missing_ok=True)
            try:
                os.link(path, partial)
            except OSError:  # not every file system has links
                shutil.copyfile(path, partial)

    def recover_newest(self) -> tuple[Checkpoint, list[str]] | None:
        """The newest that is whole, and what is wrong with those after it, in one line each."""
        damaged = []
        for path in reversed(self.paths()):
            try:
                checkpoint = read_checkpoint(path)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for other in self.paths():
                if other != path:
                    with suppress(CheckpointError):
                        self._indexes[other] = read_checkpoint(other).progress.index
            self._indexes[path] = checkpoint.progress.index
            with suppress(CheckpointError):
                self._best = read_checkpoint(self._folder / BEST).progress.accuracy
            if checkpoint.progress.accuracy > self._best:  # it was killed in between
                self._best = checkpoint.progress.accuracy
                self._keep_as_best(path)
            return checkpoint, damaged
        if damaged:
            raise CheckpointError(f"no checkpoint is whole: {'; '.join(damaged)}")
        return None

    @property
    def indexes(self) -> list[Index]:
        """Of the memories that all of them need."""
        return [*self._indexes.values()]

    def drop_after(self, round: int) -> None:
        """Those that were damaged must not come before the ones that are written now."""
        for path in self.paths():
            if _by_round(path) > _by_round(self._path(round)):
                with storage(path):
                    path.unlink()
                self._indexes.pop(path, None)

    def clear(self) -> None:
        """The run has ended: its model is what counts, and the best one stays."""
        for path in self.paths():
            with storage(path):
                path.unlink()


def _by_round(path: Path) -> tuple[int, str]:
    """A key to sort by: from round 1,000,000 on the names are longer."""
    return len(path.name), path.name


def read_checkpoint(path: Path) -> Checkpoint:
    tensors, text = read_tensors(path)
    # Not mapped: the file goes before the state does.
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        progress = TypeAdapter(Progress).validate_json(text, strict=True)
        parts = named.apart(copies, "weights", "shared", "slots")
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of this version of dcfl") from error
    return Checkpoint(ServerState(progress.round, *parts), progress)
