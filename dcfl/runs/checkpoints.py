"""Checkpoints, from which a stopped run resumes: one file each, with its own checksum.

A checkpoint holds the server's state, the best weights if they are kept, the rounds of the clients'
memories, the lengths of the logs and the run's fingerprint. `os.replace` commits it atomically; the
two newest stay.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter

from dcfl import tensors as named
from dcfl.clock.state import ClockState, Flight, Known
from dcfl.engines.memories import Index
from dcfl.errors import CheckpointError
from dcfl.messages import Broadcast, Tensors
from dcfl.server import ServerState
from dcfl.system.json_types import Count, Seconds, Text
from dcfl.system.storage import storage, strict_json
from dcfl.system.tensor_files import read_tensors, write_tensors

CHECKPOINT_SECONDS = 10.0  # between two checkpoints, with output.checkpoint = "auto"
KEPT = 2  # a spare, in case the newest is damaged
ClientNumber = Annotated[str, Field(pattern="^[0-9]{1,10}$")]


@dataclass(frozen=True)
class SavedClock:
    """All of a ClockState but its tensors."""

    now: Seconds
    flights: tuple[Flight, ...]
    known: dict[ClientNumber, Known]

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    def restored(self, weights: Tensors, shared: Tensors) -> ClockState:
        rounds = sorted({flight.round for flight in self.flights})
        names = [str(number) for number in rounds]
        pairs = zip(named.apart(weights, *names), named.apart(shared, *names), strict=True)
        sent = {n: Broadcast(n, *pair) for n, pair in zip(rounds, pairs, strict=True)}
        known = {int(client): one for client, one in self.known.items()}
        return ClockState(self.now, self.flights, known, sent)


def _saved_clock(clock: ClockState | None) -> tuple[SavedClock | None, Tensors, Tensors]:
    if clock is None:
        return None, {}, {}
    known = {str(client): one for client, one in clock.known.items()}
    weights = named.together(**{str(n): one.weights for n, one in clock.sent.items()})
    shared = named.together(**{str(n): one.shared for n, one in clock.sent.items()})
    return SavedClock(clock.now, clock.flights, known), weights, shared


@dataclass(frozen=True)
class SavedProgress:
    run: Text  # its id
    round: Count
    seconds: Seconds  # so far
    memories: dict[ClientNumber, Count]  # by client: the round its memory is from
    lengths: dict[str, Count]  # of the logs, in bytes
    begun_with: dict[str, Any]  # see `fingerprint.fingerprint`
    again: Count = 0  # rounds that were repeated after a resume
    best: Count = 0  # the round of the best weights; 0: they are not kept
    clock: SavedClock | None = None

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    @property
    def index(self) -> Index:
        return {int(client): round for client, round in self.memories.items()}


class Best(NamedTuple):
    round: int
    weights: Tensors


class Checkpoint(NamedTuple):
    state: ServerState
    progress: SavedProgress
    best: Best | None = None  # if it is kept


class Checkpoints:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._indexes: dict[Path, Index] = {}  # of the checkpoints written or read here
        self._saved_at = time.monotonic()  # the first rounds start right away

    def begin_if_due(self, every: int | Literal["auto"], round: int) -> bool:
        """Whether the round gets a checkpoint; if so, restarts the clock. With "auto", a killed run
        loses only seconds, and checkpoints do not slow down short rounds."""
        now = time.monotonic()
        if every == "auto":
            due = now - self._saved_at > CHECKPOINT_SECONDS
        else:
            due = every > 0 and round % every == 0
        if due:
            self._saved_at = now
        return due

    def paths(self) -> list[Path]:
        """The files, the oldest first."""
        return sorted(self._folder.glob("checkpoint-[0-9]*.safetensors"), key=_by_round)

    def _path(self, round: int) -> Path:
        return self._folder / f"checkpoint-{round:06d}.safetensors"

    def write(self, checkpoint: Checkpoint) -> list[Index]:
        """Write a checkpoint, delete old ones, and return the memories that the rest need."""
        state, progress, best = checkpoint
        apart = best.weights if best and best.round != state.round else {}
        clock, clock_weights, clock_shared = _saved_clock(state.clock)
        tensors = named.together(
            weights=state.weights,
            shared=state.shared,
            slots=state.slots,
            kept=state.kept,
            best=apart,
            flying=clock_weights,
            flying_shared=clock_shared,
        )
        progress = replace(progress, best=best.round if best else 0, clock=clock)
        text = strict_json(asdict(progress))
        path = self._path(progress.round)
        write_tensors(path, tensors, text)
        self._indexes[path] = progress.index
        self._delete(self.paths()[:-KEPT])
        return self.indexes

    def recover_newest(self) -> tuple[Checkpoint, list[str]] | None:
        """The newest intact checkpoint, and one line for each newer one about its damage."""
        damaged, newest = list[str](), None
        for path in reversed(self.paths()):
            try:
                checkpoint = read_checkpoint(path)
            except CheckpointError as error:
                damaged += [] if newest else [str(error)]
            else:
                self._indexes[path] = checkpoint.progress.index
                newest = newest or checkpoint
        if damaged and newest is None:
            raise CheckpointError(f"no checkpoint is whole: {'; '.join(damaged)}")
        return newest and (newest, damaged)

    @property
    def indexes(self) -> list[Index]:
        return [*self._indexes.values()]

    def drop_after(self, round: int) -> None:
        """Delete damaged checkpoints of later rounds, so that new ones count as the newest."""
        last = _by_round(self._path(round))
        self._delete(path for path in self.paths() if _by_round(path) > last)

    def has(self, round: int) -> bool:
        return self._path(round) in self._indexes

    def keep_newest(self) -> Index:
        """Delete the others; returns the memories that it needs."""
        if not self._indexes:
            with suppress(CheckpointError):  # all are damaged, and of no use
                self.recover_newest()
        newest = max(self._indexes, key=_by_round, default=None)
        self._delete(path for path in self.paths() if path != newest)
        return self._indexes[newest] if newest else {}

    def clear(self) -> None:
        self._delete(self.paths())

    def _delete(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with storage(path):
                path.unlink()
            self._indexes.pop(path, None)


def _by_round(path: Path) -> tuple[int, str]:
    """A sort key: from round 1,000,000 on the names are longer."""
    return len(path.name), path.name


def read_checkpoint(path: Path) -> Checkpoint:
    tensors, text = read_tensors(path)
    # Copied, not memory-mapped: the file may be deleted while the state is in use.
    copies = named.copies(tensors)
    try:
        progress = TypeAdapter(SavedProgress).validate_json(text, strict=True)
        parts = ("weights", "shared", "slots", "kept", "best", "flying", "flying_shared")
        weights, shared, slots, kept, best, *flying = named.apart(copies, *parts)
        clock = progress.clock.restored(*flying) if progress.clock else None
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: not a checkpoint of this version of dcfl") from error
    state = ServerState(progress.round, weights, shared, slots, kept, clock)
    chosen = Best(progress.best, best or weights) if progress.best else None
    return Checkpoint(state, progress, chosen)
