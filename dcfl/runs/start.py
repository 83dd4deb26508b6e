"""Where a run starts, new or from a checkpoint, and its checkpoints as rounds end: begun when due,
committed once the row is written."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from dcfl import tensors as named
from dcfl.config import Tables, apply, as_tables
from dcfl.engines.engine import Engine
from dcfl.engines.memories import Index
from dcfl.errors import CheckpointError, ConfigError, ProtocolError, RunFolderError
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.runs.checkpoints import Best, Checkpoint, Checkpoints, SavedProgress
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import BUILT_IN, differences, identity
from dcfl.runs.model_file import load_model
from dcfl.runs.prepare import Prepared, privacy_of
from dcfl.runs.recorder import Recorder
from dcfl.runs.rows import RoundRow
from dcfl.runs.summaries import RoundsSoFar
from dcfl.server import ServerState
from dcfl.server.validation import check_like


def keeps_checkpoint(tables: Tables) -> bool:
    return not _reason_for_no_checkpoint(tables)


def _reason_for_no_checkpoint(tables: Tables) -> str:
    output, engine = tables.get("output", {}), tables.get("engine", {})
    if EngineSettings(engine.get("name", EngineSettings.name)).at_sites:
        return "its SuperNodes have forgotten what their clients remembered"
    if output.get("checkpoint") == 0:
        return "it was trained with output.checkpoint = 0"
    keeps = output.get("keep_checkpoint", OutputSettings.keep_checkpoint)
    return "" if keeps else "it was trained with output.keep_checkpoint = false"


def planned(recorded: RecordedRun, rounds: int | None) -> Experiment:
    """With this number of rounds, if one is given. Refuses one that the run cannot end at."""
    experiment = recorded.experiment
    if rounds is None or rounds == experiment.federation.rounds:
        return experiment
    longer = apply(experiment, {"federation": {"rounds": rounds}})
    last = recorded.rounds[-1] if recorded.rounds else None
    if last is not None and last.round > rounds:
        raise ConfigError(
            f"{recorded.folder} has done {last.round} rounds: it cannot end after {rounds}"
        )
    if recorded.summary is not None:
        _require_checkpoint(recorded, rounds)
    elif last and last.round == rounds and last.accuracy is None and not last.absent:
        every = experiment.federation.evaluate_every
        raise ConfigError(
            f"{recorded.folder} cannot end after round {rounds}, which was not scored: with "
            f"federation.evaluate_every = {every} it can end after {rounds + 1} or later"
        )
    return longer


def _require_checkpoint(recorded: RecordedRun, rounds: int) -> None:
    """Refuse to make a run longer that has no checkpoint to go on from. A run of one round that was
    scored only because it is the last needs none: it starts again."""
    every = recorded.experiment.federation.evaluate_every
    if Checkpoints(recorded.folder).paths() or (len(recorded.rounds) == 1 and every > 1):
        return
    reason = _reason_for_no_checkpoint(recorded.config) or "its checkpoint is gone"
    raise RunFolderError(
        f"{recorded.folder} cannot be made longer: {reason}; train it anew with "
        f"federation.rounds={rounds}"
    )


@dataclass
class Position:
    """How far a run is. What it was when this process took it up does not move with its rounds."""

    state: ServerState
    best: Best | None = None  # if it is kept, and a round was scored
    rounds: RoundsSoFar = RoundsSoFar()
    run: str = field(default_factory=lambda: uuid4().hex)  # the run's id at remote nodes
    memories: Index = field(default_factory=dict)  # of each client, when it was taken up
    seconds: float = 0.0  # that it had taken by then
    repeated: int = 0  # rounds that are done a second time


@dataclass(frozen=True)
class Begun:
    """The first rounds of another run, which a new one shares with it: of a run whose rounds go on
    from the model and nothing else."""

    run: RecordedRun
    rounds: int  # 0: none, and the new run is one like the other
    begun_with: Mapping[str, Any]  # its fingerprint, or what of it is in the folder


@dataclass(frozen=True)
class Resumption:
    allow: Collection[str] = ()  # keys in which it may differ from how it was begun
    finished: bool = False  # it had ended, and is made longer
    begun: Begun | None = None  # it is a new one, but for these rounds


AS_BEGUN = Resumption()


def begin_or_resume(
    prepared: Prepared, recorder: Recorder, checkpoints: Checkpoints, resumption: Resumption
) -> Position:
    if recorder.resumed:
        resumed = _from_checkpoint(prepared, recorder, checkpoints, resumption)
        if resumed is not None:
            recorder.renew_own_code(prepared)
            return resumed
    begun = resumption.begun
    if begun is not None:
        _require_same(begun, prepared)
    new = Position(ServerState(0, named.snapshot(prepared.model), {}, {}))
    recorder.start(prepared, new.run)
    if begun is not None and begun.rounds:
        _take_over(begun, new, prepared, recorder)
    return new


def _require_same(begun: Begun, prepared: Prepared) -> None:
    """Its rounds must be those that this run would have done here and now."""
    before, now = identity(begun.begun_with), identity(prepared.fingerprint)
    different = {one.key for one in differences(before, now)} - {"federation.without"}
    if own := sorted(different & {"method", "model"}):
        raise ConfigError(
            f"{begun.run.folder} was trained with another {' and '.join(own)}: name its "
            f"--method-file and --model-file"
        )
    if different and begun.rounds:
        raise ConfigError(
            f"{begun.run.folder}: its rounds cannot be gone on from, because they were trained "
            f"with another {', '.join(sorted(different))}: train a new run with federation.without"
        )


def _take_over(begun: Begun, new: Position, prepared: Prepared, recorder: Recorder) -> None:
    model = load_model(begun.run.folder, model=prepared.model, round=begun.rounds)
    new.state, clients = ServerState(begun.rounds, named.snapshot(model), {}, {}), begun.run.clients
    for row in islice(begun.run.each_round(), begun.rounds):
        recorder.round(row, [client for client in clients if client.round == row.round])
        new.rounds = new.rounds.and_then(row)


def _from_checkpoint(
    prepared: Prepared, recorder: Recorder, checkpoints: Checkpoints, resumption: Resumption
) -> Position | None:
    """Start at the newest intact checkpoint and cut the logs back to it; None if there is none."""
    newest = checkpoints.recover_newest()
    wanted = prepared.experiment.federation.rounds
    if newest is None:
        privacy = privacy_of(prepared.experiment)
        if privacy.noise and privacy.secret:
            raise CheckpointError(
                f"{recorder.folder} has no checkpoint, and nobody can draw its secret noise again: "
                f"train a new run, whose epsilon comes on top of what this one has spent"
            )
        recorder.plan_rounds(wanted)
        recorder.truncate_logs({})
        return None
    checkpoint, damaged = newest
    progress = checkpoint.progress
    require_resumable(progress.begun_with, prepared.fingerprint, resumption.allow)
    _require_fitting(prepared, checkpoint)
    if progress.round > wanted:
        raise ConfigError(
            f"federation.rounds = {wanted}, and the run has done {progress.round} already"
        )
    for reason in damaged:
        warnings.warn(f"{reason}; resuming from round {progress.round}", stacklevel=5)
    # Repeated rounds: those with a row after the checkpoint, and up to two that were in progress.
    recorded, federation = RecordedRun.open(recorder.folder), prepared.experiment.federation
    in_progress = 0 if resumption.finished else 2
    repeated = sum(1 for _ in recorded.each_round()) - progress.round + in_progress
    kept = islice(recorded.each_round(), progress.round)
    rounds = _read_again(kept, progress.round, federation, recorder.folder)
    best = checkpoint.best if prepared.experiment.output.keep_best else None
    _require_best(prepared, rounds, best)
    # From here on the folder changes.
    checkpoints.drop_after(progress.round)
    recorder.plan_rounds(wanted)
    recorder.truncate_logs(progress.lengths)
    # Once more: the lengths come from the checkpoint, and must leave exactly its rounds.
    rounds = _read_again(recorded.each_round(), progress.round, federation, recorder.folder)
    past = (progress.run, progress.index, progress.seconds, progress.again + repeated)
    return Position(checkpoint.state, best, rounds, *past)


def _require_fitting(prepared: Prepared, checkpoint: Checkpoint) -> None:
    """Its tensors must be those of the model: anybody can write a file with a right checksum."""
    state, best, model = checkpoint.state, checkpoint.best, named.snapshot(prepared.model)
    known = type(prepared.experiment.server.optimizer).__module__.startswith("dcfl.")
    # Those of dcfl's optimisers have the shape of the parameter that their name ends in.
    shapes = {name: model.get(name.rpartition("/")[2]) for name in state.slots if known}
    try:
        for weights in (state.weights, best.weights if best else model):
            check_like(weights, model, "weights")
        for packed in state.clock.sent.values() if state.clock else ():
            sent = prepared.runner.compression.received(packed).weights
            check_like(sent, {name: model[name] for name in sent if name in model}, "weights")
        for name, like in shapes.items():
            if like is None or like.shape != state.slots[name].shape:
                raise ProtocolError(f"{name} is not as the optimiser keeps it")
    except ProtocolError as error:
        raise CheckpointError(
            f"the checkpoint of round {state.round} does not fit the run's model: {error}"
        ) from error


def _require_best(prepared: Prepared, rounds: RoundsSoFar, best: Best | None) -> None:
    """The best so far must be at hand if it is wanted: it may be from before the checkpoint."""
    wanted = rounds.best.round if prepared.experiment.output.keep_best and rounds.best else 0
    if wanted != (best.round if best else 0):
        raise ConfigError(
            f"output.keep_best: the best model so far, that of round {wanted}, was not kept "
            f"because it was not asked for when the run began: set it to false"
        )


def _read_again(
    rows: Iterable[RoundRow], count: int, federation: FederationSettings, folder: Path
) -> RoundsSoFar:
    """The recorded rounds, of which there must be `count`, each scored if it was due."""
    rounds = RoundsSoFar()
    for row in rows:
        due = rounds.count + 1
        scored = row.accuracy is not None or bool(row.absent)
        if (row.round, scored) != (due, federation.evaluates(due)):
            break
        rounds = rounds.and_then(row)
    else:
        if rounds.count == count:
            return rounds
    raise CheckpointError(f"{folder / 'rounds.jsonl'}: a row is not as it was written")


def require_resumable(
    begun_with: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str]
) -> None:
    """Refuse to resume with another fingerprint, because the result would differ from that of an
    uninterrupted run. Names every key that differs and is not in `allowed`."""
    before, after = identity(begun_with), identity(now)
    keys = sorted({**before, **after})
    for key in allowed:
        if key not in keys:
            raise ConfigError(f"--allow {key}: there is no such key; known: {', '.join(keys)}")
    # A checkpoint holds for any number of rounds.
    allowed = {*allowed, "federation.rounds"}
    different = sorted(differences(before, after))
    refused = [difference for difference in different if difference.key not in allowed]
    if refused:
        changes = "; ".join(f"{key} was {was!r} and is {now!r}" for key, was, now in refused)
        if any(key == "model" and now == BUILT_IN for key, _, now in refused):
            changes += (
                " (a module from Python: give it to dcfl.resume as model=, or a file that builds "
                "it as --model-file)"
            )
        options = " ".join(f"--allow {difference.key}" for difference in refused)
        raise ConfigError(
            f"the run was begun with something else: {changes}. It would not end as it should; "
            f"{options} resumes all the same"
        )


@dataclass(frozen=True)
class Saver:
    """Writes the checkpoints of a run: begun when due, committed once what they name is there."""

    prepared: Prepared
    recorder: Recorder
    checkpoints: Checkpoints
    at: Position
    began: float = field(default_factory=time.perf_counter)

    def begin(self, engine: Engine, round: int, stopping: bool) -> Index | None:
        """Begin a checkpoint if one is due: memories are written while the next round trains."""
        experiment = self.prepared.experiment
        federation, every = experiment.federation, experiment.output.checkpoint
        before_last = round == federation.rounds - 1
        if round == federation.rounds and not federation.on_schedule(round):
            return None  # scored only because it is the last: a longer run would not score it
        kept = self.keeps and before_last and not federation.on_schedule(federation.rounds)
        due = self.checkpoints.begin_if_due(every, round) or (stopping and every) or kept
        return engine.memories.save() if due else None

    @cached_property
    def keeps(self) -> bool:
        """Whether the last checkpoint outlives the run."""
        return keeps_checkpoint(as_tables(self.prepared.experiment))

    def commit_last(self, engine: Engine) -> None:
        if self.keeps and self.prepared.experiment.federation.on_schedule(self.at.state.round):
            self.commit_now(engine)

    def commit_now(self, engine: Engine) -> None:
        if not self.checkpoints.has(self.at.state.round):
            self.commit(engine, self.at.state, engine.memories.save())

    def commit(self, engine: Engine, state: ServerState, memories: Index) -> None:
        """Write the checkpoint, after everything that it refers to is on the disk. The log has the
        round's row; the next may have been trained already."""
        engine.memories.saved()
        progress = SavedProgress(
            run=self.at.run,
            round=state.round,
            seconds=self.elapsed(),
            memories={str(client): round for client, round in memories.items()},
            lengths=self.recorder.synced_log_lengths(),
            begun_with=self.prepared.fingerprint,
            again=self.at.repeated,
        )
        engine.memories.keep_only(self.checkpoints.write(Checkpoint(state, progress, self.at.best)))

    def elapsed(self) -> float:
        return self.at.seconds + time.perf_counter() - self.began
