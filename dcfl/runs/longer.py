"""Plans a recorded run with another number of rounds: the result is that of a run that was planned
so from the start.

A checkpoint holds for any number of rounds. The score of a last round that only its being the last
makes due does not, so such a round gets no checkpoint: a longer run trains it again.
"""

from __future__ import annotations

from dataclasses import replace

from dcfl.config import Tables
from dcfl.errors import ConfigError, RunFolderError, require
from dcfl.experiment import Experiment
from dcfl.runs.checkpoints import Checkpoints
from dcfl.runs.folder import RecordedRun


def keeps_checkpoint(tables: Tables) -> bool:
    """Whether a finished run with these settings can be made longer."""
    return not _reason_for_no_checkpoint(tables)


def _reason_for_no_checkpoint(tables: Tables) -> str:
    output, engine = tables.get("output", {}), tables.get("engine", {})
    if engine.get("name") == "flower":
        return "its SuperNodes have forgotten what their clients remembered"
    if "keep_checkpoint" not in output:
        return "the version of dcfl that trained it deleted the checkpoints of a finished run"
    if output.get("checkpoint") == 0:
        return "it was trained with output.checkpoint = 0"
    return "" if output["keep_checkpoint"] else "it was trained with output.keep_checkpoint = false"


def planned(recorded: RecordedRun, rounds: int | None) -> Experiment:
    """The recorded experiment, with this number of rounds if one is given. Refuses a number that
    the run cannot end at."""
    experiment = recorded.experiment
    if rounds is None or rounds == experiment.federation.rounds:
        return experiment
    longer = replace(experiment, federation=replace(experiment.federation, rounds=rounds))
    last = recorded.rounds[-1] if recorded.rounds else None
    require(
        last is None or last.round <= rounds,
        f"{recorded.folder} has done {last.round if last else 0} rounds: it cannot end after "
        f"{rounds}",
    )
    if recorded.summary is not None:
        _require_checkpoint(recorded, rounds)
    elif last is not None and last.round == rounds and last.accuracy is None:
        every = experiment.federation.evaluate_every
        raise ConfigError(
            f"{recorded.folder} cannot end after round {rounds}, which was not scored: with "
            f"federation.evaluate_every = {every} it can end after {rounds + 1} or later"
        )
    return longer


def _require_checkpoint(recorded: RecordedRun, rounds: int) -> None:
    """A run of one round that is scored only because it is the last starts again."""
    every = recorded.experiment.federation.evaluate_every
    if Checkpoints(recorded.folder).paths() or (len(recorded.rounds) == 1 and every > 1):
        return
    reason = _reason_for_no_checkpoint(recorded.config) or "its checkpoint is gone"
    raise RunFolderError(
        f"{recorded.folder} cannot be made longer: {reason}; train it anew with "
        f"federation.rounds={rounds}"
    )
