"""Runs one experiment from start to finish: prepare, federate, evaluate, record."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dcfl.config import as_tables
from dcfl.data import Dataset
from dcfl.data.settings import images_scored
from dcfl.engines.engine import Connect, Engine, OwnScores, Session
from dcfl.engines.memories import Index, delete_all_but
from dcfl.engines.runner import reproducible
from dcfl.errors import ClientFailure, ClientLost, DCFLError, Interrupted, RunFolderError
from dcfl.evaluation import Evaluation, own_mix_accuracies
from dcfl.experiment import Experiment
from dcfl.federation import Round, federate
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.models import FeatureModel
from dcfl.report import write_report
from dcfl.report.notebook_html import run_html
from dcfl.runs.checkpoints import Best, Checkpoints
from dcfl.runs.connect import connect
from dcfl.runs.evaluations import by_sites, write_evaluation
from dcfl.runs.folder import MEMORIES, RecordedRun, folder_for, require_own
from dcfl.runs.identity import flat, of_kind
from dcfl.runs.model_file import Kept, keep_personal_models
from dcfl.runs.prepare import prepare
from dcfl.runs.recorder import Recorder
from dcfl.runs.rows import ClassRecall, PersonalRow, RoundRow, Summary, data_frame
from dcfl.runs.start import AS_BEGUN, Resumption, Saver, begin_or_resume, keeps_checkpoint, planned
from dcfl.runs.summaries import (
    Judged,
    Spent,
    class_recalls,
    client_rows,
    personal_rows,
    reason_to_end,
    require_some_replies,
    require_usable_rounds,
    round_row,
    summarise,
)
from dcfl.trackers.followers import Following, following
from dcfl.trackers.tracker import FollowedRun, Tracker

if TYPE_CHECKING:
    from pandas import DataFrame


class RoundAbandoned(Exception):
    """The run is stopping, and some of its clients' processes have already ended."""


@dataclass(frozen=True)
class Stoppable:
    """Abandons a round that loses clients while the run is stopping: finishing it without them
    would give another result than an uninterrupted run."""

    engine: Engine
    stopping: Callable[[], bool]

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for reply in self.engine.run(broadcast, cohort):
            if isinstance(reply, ClientLost) and self.stopping():
                raise RoundAbandoned
            yield reply

    def settle(self, accepted: Collection[int]) -> None:
        self.engine.settle(accepted)


def until_stopped(
    rounds: Iterator[Round], engine: Engine, stopping: Callable[[], bool]
) -> Iterator[tuple[Round, float]]:
    """Yield each round when its clients are done, with the seconds it took."""
    while not stopping():
        began = time.perf_counter()
        try:
            round = next(rounds, None)
        except RoundAbandoned:
            engine.settle(())  # restores the clients' memories
            return
        if round is None:
            return
        yield round, time.perf_counter() - began


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path
    summary: Summary  # as in summary.json
    weights: Tensors = field(repr=False)
    # With these weights, in evaluation mode.
    model: FeatureModel = field(repr=False)

    @cached_property
    def rounds(self) -> list[RoundRow]:
        """Read from rounds.jsonl when first asked for."""
        return RecordedRun.open(self.folder).rounds

    def to_pandas(self) -> DataFrame:
        """The rounds as a DataFrame, indexed by their number; needs pandas."""
        return data_frame(self.rounds, index="round")

    def _repr_html_(self) -> str:
        images = images_scored(RecordedRun.open(self.folder).holdout)
        return run_html(self.summary, self.rounds, images, self.folder)


class Trained(NamedTuple):
    """A round that is trained but perhaps not yet evaluated."""

    round: Round
    seconds: float
    saved: Index | None  # the clients' memories, if the round gets a checkpoint


class Run:
    """A prepared experiment: `for row in run.rounds()` trains it, `run.result()` is the outcome.

    The caller's loop may log rows and stop the run early. All settings are checked before anything
    is written.

    Args:
        experiment: What to train.
        dataset: The images, instead of those the config names.
        model: A module of your own, instead of the config's. A copy of it is trained.
        connect: Creates the engine; by default the one the config names.
        recorder: The recorder of a run to resume; see `Run.resume`.
        resumption: How such a run is taken up again.
        trackers: Trackers of your own, beside those that the config names.

    Example:
        >>> import dcfl
        >>> run = dcfl.Run(dcfl.load_experiment(federation={"rounds": 2}))
        >>> for row in run.rounds():
        ...     print(row.round, row.sampled)
        1 5
        2 5
        >>> run.result().summary.rounds
        2
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset | None = None,
        model: FeatureModel | None = None,
        connect: Connect = connect,
        recorder: Recorder | None = None,
        resumption: Resumption = AS_BEGUN,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        self.prepared = prepare(experiment, dataset, model)
        self.experiment = self.prepared.experiment
        self._connect, self._trackers = connect, trackers
        name = self.prepared.data.dataset.name
        self._recorder = recorder or Recorder(folder_for(experiment, name))
        self._checkpoints = Checkpoints(self.folder)
        try:
            self._state, self._best, self._start = begin_or_resume(
                self.prepared, self._recorder, self._checkpoints, resumption
            )
        except BaseException:
            self._recorder.close()
            raise
        self._so_far = self._start.rounds
        self._stopping = False
        self._dropped = 0  # late replies so far
        self._last_score: Evaluation | None = None
        self._summary: Summary | None = None

    @classmethod
    def resume(
        cls,
        folder: Path,
        dataset: Dataset | None = None,
        model: FeatureModel | None = None,
        connect: Connect = connect,
        allow: Collection[str] = (),
        rounds: int | None = None,
        trackers: Sequence[Tracker] = (),
    ) -> Run:
        """Continue a run from its newest checkpoint. `allow`: keys in which it may differ from how
        it was begun. `rounds`: how many it shall have in all, for a finished run too. `trackers`:
        of your own."""
        recorded = RecordedRun.open(folder)
        require_own(folder / MEMORIES)
        recorder = Recorder(folder, resumed=True)
        try:
            ended = rounds in (None, recorded.config["federation"].get("rounds"))
            if recorded.summary is not None and ended:
                # It may have been killed just before tidying up.
                _tidy(Checkpoints(folder), folder, keeps_checkpoint(recorded.config))
                raise RunFolderError(f"{folder}: {recorded.summary.ending}")
            resumption = Resumption(allow, finished=recorded.finished)
            longer = planned(recorded, rounds)
            return cls(longer, dataset, model, connect, recorder, resumption, trackers)
        except BaseException:
            recorder.close()
            raise

    @property
    def folder(self) -> Path:
        return self._recorder.folder

    @property
    def workers(self) -> str:
        """How many processes train, and why so many."""
        return self.prepared.workers

    def stop(self) -> None:
        """Finish the round, write a checkpoint, and end with Interrupted."""
        self._stopping = True

    def rounds(self) -> Generator[RoundRow]:
        """Train, evaluate and record, one row of rounds.jsonl at a time."""
        try:
            yield from self._rounds()
        finally:
            self._recorder.close()
        self._write_report()

    def result(self) -> Result:
        """The outcome; available after the last round."""
        if self._summary is None:
            raise RunFolderError(f"{self.folder}: the run has not finished")
        model = self.prepared.model.eval()
        return Result(self.folder, self._summary, self._state.weights, model)

    def _rounds(self) -> Generator[RoundRow]:
        self._saver = Saver(self.prepared, self._recorder, self._checkpoints, self._start)
        session = self.prepared.session(
            self._start.run, self.folder / MEMORIES, self._start.memories, self._checkpoints.indexes
        )
        self._mixes = self.prepared.data.label_mixes()
        threads = self.experiment.engine.threads
        with ExitStack() as at_the_end:
            with reproducible(threads), self._connected(session) as engine:
                # Not earlier: an engine forks its workers, and trackers start threads.
                self._following = at_the_end.enter_context(self._followed())
                if not self._enough:  # a resumed run may have been killed just before its end
                    yield from self._recorded(engine)
                if not self._enough and self._state.round < self.experiment.federation.rounds:
                    self._interrupt(engine)
                own_scores = self._own_scores(engine)
                final = self._last_score or self._final_score(engine)
                personal = self._personal(engine)
                self._saver.commit_last(engine, self._state, self._best)
            recalls = class_recalls(self.prepared.data.dataset, final, own_scores)
            self._finish(own_scores, personal, recalls)
            self._following.summary = self._summary

    @contextmanager
    def _connected(self, session: Session) -> Iterator[Engine]:
        """A run that gets no engine leaves no folder behind, which would block the next."""
        with ExitStack() as stack:
            try:
                engine = stack.enter_context(self._connect(session))
            except BaseException:
                self._recorder.withdraw()
                raise
            yield engine

    def _followed(self) -> AbstractContextManager[Following]:
        settings = of_kind(flat(as_tables(self.experiment)), "result", "seed")
        run = FollowedRun(self._start.run, self.folder, settings, self._state.round)
        return following(run, self.experiment.output.trackers, self._trackers)

    @property
    def _enough(self) -> str:
        return reason_to_end(self.experiment.federation, self._so_far)

    def _recorded(self, engine: Engine) -> Generator[RoundRow]:
        """Yield a row per round. If the engine can, it evaluates a round while the next trains,
        unless the next may not be wanted."""
        self._server = self.prepared.server()
        pending: Trained | None = None  # its evaluation is still running
        federation, stopping = self.experiment.federation, lambda: self._stopping
        overlaps = engine.overlaps and not federation.may_end_early
        rounds = federate(
            self._server,
            Stoppable(engine, stopping),
            self._state,
            federation.rounds,
            federation.share,
            federation.seed,
        )
        try:
            for round, seconds in until_stopped(rounds, engine, stopping):
                before, pending = pending, None
                if before is not None:
                    yield self._record(engine, before)
                saved = self._saver.begin(engine, round.state.round, self._stopping)
                trained = Trained(round, seconds, saved)
                self._state = round.state
                if self._evaluates(trained):
                    engine.begin_evaluation(round.state.weights)
                if self._evaluates(trained) and overlaps:
                    pending = trained
                else:
                    yield self._record(engine, trained)
                    if self._enough:
                        return
        except Exception:
            if pending is not None:  # trained before the failure: record it
                with suppress(DCFLError):
                    self._record(engine, pending)
            raise
        if pending is not None:
            yield self._record(engine, pending)

    def _evaluates(self, trained: Trained) -> bool:
        return self.experiment.federation.evaluates(trained.round.state.round)

    def _judged(self, engine: Engine) -> Judged:
        result, accuracies = engine.end_evaluation(), engine.own_accuracies
        if accuracies is None:
            accuracies = own_mix_accuracies(result.by_class, self._mixes)
        self._last_score = result
        return Judged(result, accuracies)

    def _record(self, engine: Engine, trained: Trained) -> RoundRow:
        """Finish the round's evaluation, write its row and, if due, its checkpoint."""
        round, training, saved = trained
        began = time.perf_counter()
        judged = self._judged(engine) if self._evaluates(trained) else None
        spent = Spent(training, time.perf_counter() - began)
        dropped, self._dropped = engine.dropped - self._dropped, engine.dropped
        row = round_row(round, judged, spent, self._so_far.last, dropped, engine.take_remarks())
        self._so_far = self._so_far.and_then(row)
        site_names = self.prepared.data.dataset.site_names
        self._recorder.round(row, client_rows(round, judged, site_names))
        self._following.round(row)
        if self.experiment.output.keep_best and self._so_far.best_is(row):
            self._best = Best(row.round, round.state.weights)
        if saved is not None:
            self._saver.commit(engine, round.state, saved, self._best)
        require_usable_rounds(self._so_far, round.clients, self._server, self.folder)
        return row

    def _interrupt(self, engine: Engine) -> None:
        where = f"after round {self._state.round} of {self.experiment.federation.rounds}"
        if not self.experiment.output.checkpoint or not self._so_far.count:
            raise Interrupted(f"stopped {where}")
        self._saver.commit(engine, self._state, engine.memories.save(), self._best)
        raise Interrupted(f"stopped {where}; `dcfl resume {self.folder}` continues")

    def _own_scores(self, engine: Engine) -> Sequence[OwnScores]:
        """Of the final model. Sites that do not answer must not spoil a finished run."""
        try:
            found = engine.own_scores(self._state.weights)
        except DCFLError as error:
            warnings.warn(f"the sites have not scored the final model: {error}", stacklevel=3)
            return ()
        for notice in engine.take_remarks().notices:
            warnings.warn(notice, stacklevel=3)
        return found

    def _final_score(self, engine: Engine) -> Evaluation | None:
        """Once more, for a run that was killed just before its end."""
        with suppress(DCFLError):  # of sites that do not answer
            engine.begin_evaluation(self._state.weights)
            return engine.end_evaluation()
        return None

    def _personal(self, engine: Engine) -> Sequence[PersonalRow]:
        """How clients fare with the global model and with their own; empty if no part of it is
        personal, or if nobody here knows."""
        if not self.prepared.runner.personal:
            return ()
        data, weights = self.prepared.data, self._state.weights
        own = keep_personal_models(engine, weights, data, self.folder)
        if not own.isfinite().any():
            return ()
        engine.begin_evaluation(weights)  # again: a resumed run may have had no round left
        common = self._judged(engine).client_accuracies
        return personal_rows(common, own, data.dataset.site_names)

    def _finish(
        self,
        own_scores: Sequence[OwnScores],
        personal: Sequence[PersonalRow],
        recalls: tuple[ClassRecall, ...],
    ) -> None:
        require_some_replies(self._so_far, self.folder)
        models: dict[Kept, Tensors] = {"last": self._state.weights}
        if self._best is not None:
            models["best"] = self._best.weights
        summary = summarise(
            self.prepared,
            models,
            self._so_far,
            self._saver.elapsed(),
            self._start.repeated,
            personal,
            recalls,
        )
        if own_scores:
            dataset = self.prepared.data.dataset
            names = (dataset.name, dataset.class_names)
            write_evaluation(self.folder, by_sites(*names, own_scores, summary.weights_sha256))
        self._recorder.finish(self.prepared, models, summary, personal)
        _tidy(self._checkpoints, self.folder, self._saver.keeps)
        self.prepared.model.load_state_dict(self._state.weights)
        self._summary = summary

    def _write_report(self) -> None:
        """A failed report is only a warning: it must not spoil a finished run."""
        if self.experiment.output.report:
            try:
                write_report(self.folder)
            except DCFLError as error:
                warnings.warn(f"the report was not written: {error}", stacklevel=3)


def _tidy(checkpoints: Checkpoints, folder: Path, keep: bool) -> None:
    """The run has finished: delete what was for resuming it, but for what a longer run needs."""
    if keep:
        delete_all_but(checkpoints.keep_newest(), folder / MEMORIES)
    else:
        checkpoints.clear()
        shutil.rmtree(folder / MEMORIES, ignore_errors=True)
