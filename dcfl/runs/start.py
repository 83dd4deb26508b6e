"""Decides where a run starts: at round 1 or at its newest checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from dcfl import tensors as named
from dcfl.data.catalogue import OWN
from dcfl.engines.memories import Index
from dcfl.errors import CheckpointError, ConfigError, require
from dcfl.experiment import FederationSettings
from dcfl.runs.checkpoints import Best, Checkpoints, best_of
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import Settings, complete, differences, of_kind
from dcfl.runs.prepare import Prepared
from dcfl.runs.recorder import Recorder
from dcfl.runs.rounds_so_far import RoundsSoFar
from dcfl.runs.rows import RoundRow
from dcfl.server import ServerState

NOT_KNOWN = "not recorded"  # by the dcfl version that wrote the checkpoint


@dataclass(frozen=True)
class Start:
    """All but the server's state, which a run must not keep beyond its first round: it holds a
    whole model."""

    run: str = field(default_factory=lambda: uuid4().hex)  # the run's id at remote nodes
    rounds: RoundsSoFar = RoundsSoFar()
    memories: Index = field(default_factory=dict)  # the round each client's memory is from
    seconds: float = 0.0  # the run has taken so far
    repeated: int = 0  # rounds that are done a second time


@dataclass(frozen=True)
class Resumption:
    """How a recorded run is taken up again."""

    allow: Collection[str] = ()  # keys in which it may differ from how it was begun
    finished: bool = False  # it had ended, and is made longer


AS_BEGUN = Resumption()


class Begun(NamedTuple):
    state: ServerState
    best: Best | None  # if it is kept, and a round was scored
    start: Start


def begin_or_resume(
    prepared: Prepared, recorder: Recorder, checkpoints: Checkpoints, resumption: Resumption
) -> Begun:
    """Find where the run in the recorder's folder starts; writes the first files of a new run."""
    if recorder.resumed:
        resumed = _from_checkpoint(prepared, recorder, checkpoints, resumption)
        if resumed is not None:
            recorder.renew_own_code(prepared)
            return resumed
    recorder.start(prepared)
    return Begun(ServerState(0, named.snapshot(prepared.model), {}, {}), None, Start())


def _from_checkpoint(
    prepared: Prepared, recorder: Recorder, checkpoints: Checkpoints, resumption: Resumption
) -> Begun | None:
    """Start at the newest intact checkpoint and cut the logs back to it; None if there is none."""
    newest = checkpoints.recover_newest()
    wanted = prepared.experiment.federation.rounds
    if newest is None:
        recorder.plan_rounds(wanted)
        recorder.truncate_logs({})
        return None
    checkpoint, damaged = newest
    progress = checkpoint.progress
    require_resumable(progress.begun_with, prepared.fingerprint, resumption.allow)
    require(
        progress.round <= wanted,
        f"federation.rounds = {wanted}, and the run has done {progress.round} already",
    )
    for reason in damaged:
        warnings.warn(f"{reason}; resuming from round {progress.round}", stacklevel=5)
    # Repeated rounds: those with a row after the checkpoint, and up to two that were in progress.
    recorded, federation = RecordedRun.open(recorder.folder), prepared.experiment.federation
    in_progress = 0 if resumption.finished else 2
    repeated = sum(1 for _ in recorded.each_round()) - progress.round + in_progress
    kept = islice(recorded.each_round(), progress.round)
    rounds = _read_again(kept, progress.round, federation, recorder.folder)
    best = best_of(checkpoint) if prepared.experiment.output.keep_best else None
    _require_best(prepared, rounds, best)
    # From here on the folder changes.
    checkpoints.drop_after(progress.round)
    recorder.plan_rounds(wanted)
    recorder.truncate_logs(progress.lengths)
    rounds = _read_again(recorded.each_round(), progress.round, federation, recorder.folder)
    start = Start(progress.run, rounds, progress.index, progress.seconds, progress.again + repeated)
    return Begun(checkpoint.state, best, start)


def _require_best(prepared: Prepared, rounds: RoundsSoFar, best: Best | None) -> None:
    """The best so far must be at hand if it is wanted: it may be from before the checkpoint."""
    wanted = rounds.best.round if prepared.experiment.output.keep_best and rounds.best else 0
    require(
        wanted == (best.round if best else 0),
        f"output.keep_best: the best model so far, that of round {wanted}, was not kept because it "
        f"was not asked for when the run began: set it to false",
    )


def _read_again(
    rows: Iterable[RoundRow], count: int, federation: FederationSettings, folder: Path
) -> RoundsSoFar:
    """The recorded rounds, of which there must be `count`, each scored if it was due."""
    rounds = RoundsSoFar()
    for row in rows:
        due = rounds.count + 1
        if (row.round, row.accuracy is not None) != (due, federation.evaluates(due)):
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
    facts = {key: NOT_KNOWN for key in now if "." not in key}
    before, after = complete({**facts, **begun_with}), complete(now)
    keys = sorted(of_kind({**before, **after}, "result", "seed"))
    for key in allowed:
        if key not in keys:
            raise ConfigError(f"--allow {key}: there is no such key; known: {', '.join(keys)}")
    different = sorted(differences(_compared(before), _compared(after), "result", "seed"))
    refused = [difference for difference in different if difference.key not in allowed]
    if refused:
        changes = "; ".join(f"{key} was {was!r} and is {now!r}" for key, was, now in refused)
        options = " ".join(f"--allow {difference.key}" for difference in refused)
        raise ConfigError(
            f"the run was begun with something else: {changes}. It would not end as it should; "
            f"{options} resumes all the same"
        )


def _compared(settings: Settings) -> Settings:
    """Ignores the number of rounds, because a checkpoint holds for any, and the paths of the user's
    own images and split: they may have moved, and `data` and `split` hash them."""
    settings = {key: value for key, value in settings.items() if key != "federation.rounds"}
    kinds = {
        key: str(settings[key]).partition(":")[0] for key in ("data.dataset", "data.partition")
    }
    return {**settings, **{key: kind for key, kind in kinds.items() if kind in (*OWN, "file")}}
