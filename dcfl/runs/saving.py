"""Checkpoints of one run as its rounds end: begun when due, committed once the row is written."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from dcfl.config import as_tables
from dcfl.engines.engine import Engine
from dcfl.engines.memories import Index
from dcfl.runs.checkpoints import Best, Checkpoints, Progress, checkpoint_of
from dcfl.runs.longer import keeps_checkpoint
from dcfl.runs.prepare import Prepared
from dcfl.runs.recorder import Recorder
from dcfl.runs.start import Start
from dcfl.server import ServerState


@dataclass(frozen=True)
class Saver:
    prepared: Prepared
    recorder: Recorder
    checkpoints: Checkpoints
    start: Start
    began: float = field(default_factory=time.perf_counter)

    def begin(self, engine: Engine, round: int, stopping: bool) -> Index | None:
        """Begin a checkpoint if one is due: the clients' memories are written while the next round
        trains."""
        experiment = self.prepared.experiment
        federation, every = experiment.federation, experiment.output.checkpoint
        before_last = round == federation.rounds - 1
        if round == federation.rounds and not federation.on_schedule(round):
            return None  # see `longer`
        kept = self.keeps and before_last and not federation.on_schedule(federation.rounds)
        due = self.checkpoints.begin_if_due(every, round) or (stopping and every) or kept
        return engine.memories.save() if due else None

    @cached_property
    def keeps(self) -> bool:
        """Whether the last checkpoint outlives the run."""
        return keeps_checkpoint(as_tables(self.prepared.experiment))

    def commit_last(self, engine: Engine, state: ServerState, best: Best | None) -> None:
        """The run has ended: write the checkpoint that stays, unless it is there."""
        on_schedule = self.prepared.experiment.federation.on_schedule(state.round)
        if self.keeps and on_schedule and not self.checkpoints.has(state.round):
            self.commit(engine, state, engine.memories.save(), best)

    def commit(
        self, engine: Engine, state: ServerState, memories: Index, best: Best | None
    ) -> None:
        """Write the checkpoint, after everything that it refers to is on the disk. The log has the
        round's row. `best`: if it is kept."""
        engine.memories.saved()
        progress = Progress(
            run=self.start.run,
            round=state.round,
            seconds=self.elapsed(),
            memories={str(client): round for client, round in memories.items()},
            lengths=self.recorder.synced_log_lengths(),
            begun_with=self.prepared.fingerprint,
            again=self.start.repeated,
        )
        engine.memories.keep_only(self.checkpoints.write(checkpoint_of(state, progress, best)))

    def elapsed(self) -> float:
        """Seconds that the run has taken, before it was resumed included."""
        return self.start.seconds + time.perf_counter() - self.began
