"""Runs one experiment from start to finish: prepare, federate, evaluate, record."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from dcfl.clock.events import federate_by_clock
from dcfl.config import as_tables
from dcfl.data import Dataset, load_dataset
from dcfl.data.catalogue import is_named
from dcfl.data.datasets import short_name
from dcfl.data.settings import images_scored
from dcfl.engines.engine import Connect, Engine, OwnScores, Session, SiteScore
from dcfl.engines.memories import Index, delete_all_but
from dcfl.engines.runner import reproducible
from dcfl.errors import (
    ClientFailure,
    ClientLost,
    DCFLError,
    Interrupted,
    RunFolderError,
    TooFewClients,
)
from dcfl.evaluation import Evaluation, client_accuracies
from dcfl.experiment import Experiment
from dcfl.federation import Round, federate
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.models import FeatureModel
from dcfl.models.own_models import OwnModel
from dcfl.runs.checkpoints import Best, Checkpoints
from dcfl.runs.connect import connect
from dcfl.runs.evaluations import by_sites, worst_words, write_evaluation
from dcfl.runs.folder import MEMORIES, RecordedRun, folder_for
from dcfl.runs.identity import flat, of_kind
from dcfl.runs.model_file import Kept, keep_personal_models, round_file, write_model
from dcfl.runs.prepare import prepare, with_own_data
from dcfl.runs.recorder import Recorder
from dcfl.runs.rows import ClassRecall, PersonalRow, RoundRow, Summary, data_frame
from dcfl.runs.start import AS_BEGUN, Resumption, Saver, begin_or_resume, keeps_checkpoint, planned
from dcfl.runs.summaries import (
    Judged,
    class_recalls,
    client_rows,
    global_words,
    own_words,
    percent,
    personal_rows,
    reason_to_end,
    require_usable_rounds,
    round_row,
    summarise,
)
from dcfl.runs.trust import require_trust
from dcfl.server import ClientReport
from dcfl.trackers import FollowedRun, Following, Tracker

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
    keep: Callable[[int, ClientUpdate], None]

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for reply in self.engine.run(broadcast, cohort):
            if isinstance(reply, ClientLost) and self.stopping():
                raise RoundAbandoned
            if isinstance(reply, ClientUpdate):
                self.keep(broadcast.round, reply)
            yield reply

    def settle(self, accepted: Collection[int]) -> None:
        self.engine.settle(accepted)


def until_stopped(
    rounds: Iterator[Round], engine: Engine, stopping: Callable[[], bool]
) -> Iterator[tuple[Round, float]]:
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

    def __str__(self) -> str:
        """Four lines, for `print`."""
        of = self.summary
        worst = f"{percent(of.worst_decile_accuracy)} for the {worst_words(of.clients)}"
        scores = f"{global_words(of)}\nclients  {worst}"
        if of.personal_models:
            scores = f"own models    {own_words(of)}\nglobal model  {global_words(of)}"
        return (
            f"{of.method} on {of.dataset}, {of.clients} clients, {of.rounds} rounds\n{scores}\n"
            f"folder   {self.folder}"
        )

    def to_pandas(self) -> DataFrame:
        """The rounds as a DataFrame, indexed by their number; needs pandas."""
        return data_frame(self.rounds, index="round")

    def _repr_html_(self) -> str:
        from dcfl.report.notebook_html import run_html

        images = images_scored(RecordedRun.open(self.folder).holdout)
        return run_html(self.summary, self.rounds, images, self.folder)


class Trained(NamedTuple):
    round: Round
    seconds: float
    saved: Index | None  # the clients' memories, if the round gets a checkpoint
    scored: bool  # whether its model is evaluated


class Training:
    """The rounds of a run whose engine is connected: trained, evaluated, recorded."""

    def __init__(
        self, engine: Engine, saver: Saver, follower: Following, stopping: Callable[[], bool]
    ) -> None:
        """The saver's position moves with every round."""
        self._engine, self._saver, self._follower = engine, saver, follower
        self._stopping = stopping
        prepared, self._at, self._recorder = saver.prepared, saver.at, saver.recorder
        self._prepared, self._folder = prepared, saver.recorder.folder
        self._federation, self._output = prepared.experiment.federation, prepared.experiment.output
        self._server, self._clock = prepared.server(), prepared.clock()
        self._mixes = prepared.data.label_mixes()
        self._dropped = 0  # late replies so far
        self._last_score: Evaluation | None = None

    @property
    def _enough(self) -> str:
        return reason_to_end(self._federation, self._at.rounds)

    def rounds(self) -> Generator[RoundRow]:
        """Yield a row per round; raise Interrupted if the run is stopped before its end."""
        if not self._enough:  # a resumed run may have been killed just before its end
            yield from self._recorded()
        if not self._enough and self._at.state.round < self._federation.rounds:
            self._interrupt()

    def _recorded(self) -> Generator[RoundRow]:
        """Train and record. If the engine can, it evaluates a round while the next trains, unless
        the next may not be wanted."""
        engine, federation, prepared = self._engine, self._federation, self._prepared
        pending: Trained | None = None  # its evaluation is still running
        overlaps = engine.overlaps and not federation.may_end_early
        backend = Stoppable(engine, self._stopping, self._keep_update)
        last, again = federation.rounds, self._asks_again
        # The first state is in no variable here, which would keep a model for the whole run.
        if self._clock is not None:
            rounds = federate_by_clock(self._clock, backend, self._at.state, last, again)
        else:
            rounds = federate(
                self._server,
                backend,
                self._at.state,
                last,
                federation.share,
                federation.seed,
                again,
                prepared.draws,
            )
        try:
            for round, seconds in until_stopped(rounds, engine, self._stopping):
                before, pending = pending, None
                if before is not None:
                    yield self._record(before)
                number = round.state.round
                saved = self._saver.begin(engine, number, self._stopping())
                trained = Trained(round, seconds, saved, federation.evaluates(number))
                self._at.state = round.state
                if trained.scored:
                    engine.begin_evaluation(round.state.weights)
                if trained.scored and overlaps:
                    pending = trained
                else:
                    yield self._record(trained)
                    if self._enough:
                        return
        except Exception:
            if pending is not None:  # trained before the failure: record it
                with suppress(DCFLError):
                    self._record(pending)
            raise
        if pending is not None:
            yield self._record(pending)

    def _asks_again(self, clients: Sequence[ClientReport]) -> bool:
        again = self._engine.asks_again(clients)
        self._at.repeated += again  # it may cost privacy
        return again

    def _record(self, trained: Trained) -> RoundRow:
        round, at, engine = trained.round, self._at, self._engine
        began = time.perf_counter()
        judged = self._judged() if trained.scored else None
        waited = time.perf_counter() - began
        dropped, self._dropped = engine.dropped - self._dropped, engine.dropped
        row = round_row(
            round,
            judged,
            at.rounds,
            seconds=trained.seconds + waited,
            evaluation_seconds=waited,
            dropped=dropped,
            sites=self._site_scores(judged) if trained.scored else (),
            absent=engine.sites.absent if trained.scored and engine.sites else (),
            notices=engine.take_notices(),
        )
        at.rounds = at.rounds.and_then(row)
        site_names = self._prepared.data.dataset.site_names
        self._recorder.round(row, client_rows(round, judged, site_names))
        self._follower.round(row)
        if self._output.keeps(row.round):
            path = self._folder / round_file(row.round)
            write_model(path, self._prepared, round.state.weights)
        if self._output.keep_best and at.rounds.best and at.rounds.best.round == row.round:
            at.best = Best(row.round, round.state.weights)
        if trained.saved is not None:
            self._saver.commit(engine, round.state, trained.saved)
        require_usable_rounds(at.rounds, round.clients, self._server, self._folder)
        return row

    def _keep_update(self, round: int, update: ClientUpdate) -> None:
        if self._output.keep_updates and self._output.keeps(round):
            self._recorder.keep_update(round, update)

    def _judged(self) -> Judged | None:
        result, sites = self._engine.end_evaluation(), self._engine.sites
        self._last_score = result
        if result is None:
            return None
        if sites is not None:
            return Judged(result, sites.own_accuracies)
        return Judged(result, client_accuracies(result, self._mixes))

    def _site_scores(self, judged: Judged | None) -> tuple[SiteScore, ...]:
        if self._engine.sites is not None:
            return self._engine.sites.site_scores()
        if judged is None or judged.result.by_owner is None:
            return ()
        images = self._prepared.data.dataset.cell_sizes.sum(dim=1).tolist()
        found = enumerate(zip(judged.result.by_owner.tolist(), images, strict=True))
        return tuple(SiteScore(site, score, n, 1.0) for site, (score, n) in found if n)

    def _interrupt(self) -> None:
        where = f"after round {self._at.state.round} of {self._federation.rounds}"
        if not self._output.checkpoint or not self._at.rounds.count:
            raise Interrupted(f"stopped {where}")
        self._saver.commit_now(self._engine)
        raise Interrupted(f"stopped {where}; `dcfl resume {self._folder}` continues")

    def end(self) -> tuple[Sequence[OwnScores], Sequence[PersonalRow], tuple[ClassRecall, ...]]:
        """Score the final model in every way, and write the checkpoint that stays. By sites if the
        test images are there; the clients' own models if they have such; class by class."""
        own_scores = self._own_scores()
        final = self._last_score or self._final_score()
        personal = self._personal()
        self._saver.commit_last(self._engine)
        return own_scores, personal, class_recalls(self._prepared.data.dataset, final, own_scores)

    def _own_scores(self) -> Sequence[OwnScores]:
        """Sites that do not answer must not spoil a finished run."""
        if self._engine.sites is None:
            return ()
        try:
            found = self._engine.sites.own_scores(self._at.state.weights)
        except DCFLError as error:
            warnings.warn(f"the sites have not scored the final model: {error}", stacklevel=3)
            return ()
        for notice in self._engine.take_notices():
            warnings.warn(notice, stacklevel=3)
        return found

    def _final_score(self) -> Evaluation | None:
        """Evaluate once more, for a run that was killed just before its end."""
        with suppress(DCFLError):  # of sites that do not answer
            self._engine.begin_evaluation(self._at.state.weights)
            return self._engine.end_evaluation()
        return None

    def _personal(self) -> Sequence[PersonalRow]:
        """How clients fare with the global model and with their own; empty if no part of it is
        personal, or if nobody here knows."""
        if not self._prepared.runner.keeps_own:
            return ()
        data, weights = self._prepared.data, self._at.state.weights
        own, on_sites = keep_personal_models(self._engine, weights, data, self._folder)
        if not own.isfinite().any():
            return ()
        self._engine.begin_evaluation(weights)  # again: a resumed run may have had no round left
        judged, sites = self._judged(), self._engine.sites
        common = judged.client_accuracies if judged else torch.full_like(own, torch.nan)
        common = sites.own_accuracies if sites else common  # also of those that have answered alone
        return personal_rows(common, own, on_sites, data.dataset.site_names, sites)


class Run:
    """A prepared experiment: `for row in run.rounds()` trains it, `run.result()` is the outcome.

    The caller's loop may log rows and stop the run early. All settings are checked before anything
    is written.

    Args:
        experiment: What to train.
        dataset: The images, instead of those the config names; saved in the folder.
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
        model: FeatureModel | OwnModel | None = None,
        connect: Connect = connect,
        recorder: Recorder | None = None,
        resumption: Resumption = AS_BEGUN,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        in_memory = None
        if dataset is not None and not is_named(dataset.name):
            dataset = dataset.by_site()  # as its file has it
            in_memory = None if dataset.name == short_name(experiment.data.dataset) else dataset
        if in_memory is not None:
            folder = recorder.folder if recorder else folder_for(experiment, in_memory.name)
            experiment, whole = with_own_data(experiment, in_memory, folder)
            dataset = load_dataset(experiment.seeded_data, whole)
        self.prepared = prepare(experiment, dataset, model)
        self.experiment = self.prepared.experiment
        self._connect, self._trackers = connect, trackers
        name = self.prepared.data.dataset.name
        data = "" if in_memory is None else in_memory.file_name
        self._recorder = recorder or Recorder(folder_for(experiment, name), data=data)
        self.folder = self._recorder.folder
        self._checkpoints = Checkpoints(self.folder)
        try:
            if in_memory is not None:
                in_memory.save(self.experiment.data.dataset.removeprefix("npz:"))
            self._position = begin_or_resume(
                self.prepared, self._recorder, self._checkpoints, resumption
            )
        except BaseException:
            self._recorder.close()
            raise
        self._stopping = False
        self._summary: Summary | None = None

    @classmethod
    def resume(
        cls,
        folder: Path,
        dataset: Dataset | None = None,
        model: FeatureModel | OwnModel | None = None,
        connect: Connect = connect,
        allow: Collection[str] = (),
        rounds: int | None = None,
        trackers: Sequence[Tracker] = (),
        trust: bool = False,
    ) -> Run:
        """Continue a run from its newest checkpoint. `allow`: keys in which it may differ from how
        it was begun. `model`: its module from Python, or what builds that. `rounds`: how many it
        shall have in all, for a finished run too. `trackers`: of your own. `trust`: it may name
        what lies outside its folder, whoever began it."""
        recorded = RecordedRun.open(folder)
        recorder = Recorder(folder, resumed=True)
        try:
            ended = rounds in (None, recorded.config["federation"].get("rounds"))
            if recorded.summary is not None and ended:
                # It may have been killed just before tidying up.
                _tidy(Checkpoints(folder), folder, keeps_checkpoint(recorded.config))
                raise RunFolderError(f"{folder}: {recorded.summary.ending}")
            resumption = Resumption(allow, finished=recorded.finished)
            longer = planned(recorded, rounds)
            if not trust:
                require_trust(folder, longer)
            return cls(longer, dataset, model, connect, recorder, resumption, trackers)
        except BaseException:
            recorder.close()
            raise

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
        return Result(self.folder, self._summary, self._position.state.weights, model)

    def _rounds(self) -> Generator[RoundRow]:
        saver = Saver(self.prepared, self._recorder, self._checkpoints, self._position)
        with ExitStack() as at_the_end:
            with reproducible(self.experiment.engine.threads), self._connected() as engine:
                # Not earlier: an engine forks its workers, and trackers start threads.
                settings = of_kind(flat(as_tables(self.experiment)), "result", "seed")
                at, names = self._position, self.experiment.output.trackers
                followed = FollowedRun(at.run, self.folder, settings, at.state.round)
                follower = at_the_end.enter_context(Following(followed, names, self._trackers))
                training = Training(engine, saver, follower, stopping=lambda: self._stopping)
                yield from training.rounds()
                found = training.end()
            self._finish(saver, *found)
            follower.summary = self._summary

    @contextmanager
    def _connected(self) -> Iterator[Engine]:
        """A run that gets no engine leaves no folder behind, which would block the next."""
        prepared, at = self.prepared, self._position
        session = Session(
            at.run,
            self.experiment,
            prepared.runner,
            prepared.placement,
            self.folder / MEMORIES,
            at.memories,
            self._checkpoints.indexes,
            at.rounds.judges,
        )
        with ExitStack() as stack:
            try:
                engine = stack.enter_context(self._connect(session))
            except BaseException:
                self._recorder.withdraw()
                raise
            yield engine

    def _finish(
        self,
        saver: Saver,
        own_scores: Sequence[OwnScores],
        personal: Sequence[PersonalRow],
        recalls: tuple[ClassRecall, ...],
    ) -> None:
        at, prepared = self._position, self.prepared
        if not at.rounds.used:  # the model never changed: there is no result
            raise TooFewClients(
                f"no round had enough usable replies; the rounds are in {self.folder}"
            )
        models: dict[Kept, Tensors] = {"last": at.state.weights}
        if at.best is not None:
            models["best"] = at.best.weights
        spent = (saver.elapsed(), at.repeated)
        summary = summarise(prepared, models, at.rounds, *spent, personal, recalls)
        if own_scores:
            dataset, sha256 = prepared.data.dataset, summary.weights_sha256
            record = by_sites(dataset.name, dataset.class_names, own_scores, sha256)
            write_evaluation(self.folder, record)
        self._recorder.finish(prepared, models, summary, personal)
        _tidy(self._checkpoints, self.folder, saver.keeps)
        prepared.model.load_state_dict(at.state.weights)
        self._summary = summary

    def _write_report(self) -> None:
        """A failed report is only a warning: it must not spoil a finished run."""
        if self.experiment.output.report:
            from dcfl.report import write_report

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
