"""A sweep from beginning to end: trials on kept-back images, the chosen point on test images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dcfl.config import apply, experiment_from, load_experiment
from dcfl.data import load_dataset
from dcfl.errors import ConfigError, RunFolderError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.report import find_runs
from dcfl.runs.folder import new_folder
from dcfl.runs.model_file import Which
from dcfl.runs.pairs import Spread
from dcfl.studies.cells.cell_folders import CellFolder, difference_to, require_free
from dcfl.studies.cells.crew import Crew, MixedCrew, crew_for, processes_for, until_it_fails
from dcfl.studies.cells.news import Show
from dcfl.studies.cells.progress import shown_in_notebooks
from dcfl.studies.cells.shelf import Shelf
from dcfl.studies.sweep.budget import Budget, seconds_in
from dcfl.studies.sweep.search_loop import Listed, SearchLoop, Source
from dcfl.studies.sweep.searches import Search
from dcfl.studies.sweep.space import CHOOSERS, Space, fitted, split_values
from dcfl.studies.sweep.sweep_result import FinalScore, SweepResult
from dcfl.studies.sweep.trials import QUANTITIES, By, Trial, TrialCell, Trials, needs_holdout
from dcfl.studies.sweep.tuning import POINTS, Tuner, optuna
from dcfl.system.locks import locked
from dcfl.system.storage import storage

HOLDOUT = 0.1  # share of the training images that trials are scored on, unless the config says
SEEDS = ("federation.seed", "data.seed")
Guard = Callable[[Crew], AbstractContextManager[None]]


@dataclass(frozen=True)
class SweepPlan:
    wanted: Experiment  # without what is varied, as the user has it
    space: Space
    search: Search
    by: By
    trials: Trials

    @property
    def folder(self) -> Path:
        return self.trials.folder

    @property
    def rounds(self) -> int:
        return self.wanted.federation.rounds

    @cached_property
    def planned(self) -> list[Trial]:
        """All trials, as their folders were when first read; for Optuna, whose are not known
        beforehand, as many that cost about the same."""
        points = self.search.points(self.space)
        return [self.trials.trial(number, point) for number, point in enumerate(points)]

    @property
    def todo(self) -> list[CellFolder[TrialCell]]:
        return [cell for trial in self.planned for cell in trial.todo]

    @property
    def chosen_todo(self) -> list[CellFolder[TrialCell]]:
        """Runs of the chosen setting that are left, as far as it is known: others cost about the
        same. None where trials are tested as they are."""
        finished = [trial for trial in self.planned if trial.state == "finished"]
        best = max(finished, key=lambda trial: trial.score(self.by), default=self.planned[0])
        return [] if needs_holdout(best.experiment) else self.trials.chosen(best).todo

    def check(self) -> None:
        """Refuse settings that do not fit together, and a folder that holds anything else, before
        anything is trained."""
        self.wanted.data.require_here()
        _ = self.planned
        inside = [
            run
            for where in ("trials", "chosen")
            if any((self.folder / where).glob("*/config.toml"))
            for run in find_runs(self.folder / where)
        ]
        if not inside:
            require_free(self.folder, ("trials", "chosen", POINTS))
        sections = {f"{key.partition('.')[0]}." for key in self.space.keys if key in CHOOSERS}
        ignored = (*self.space.keys, *sections, *SEEDS)
        for run in inside:
            chosen = run.folder.parent.name == "chosen"
            also = ("data.holdout",) if chosen else ()
            if different := difference_to(self.trials.experiment, run, (*ignored, *also)):
                raise RunFolderError(
                    f"{self.folder} holds another sweep: in {run.folder.name}, {different}; "
                    f"choose another folder with --out"
                )

    def carry_out(
        self,
        parallel: int = 0,
        limit: float | None = None,
        show: Show = lambda news: None,
        guard: Guard = lambda crew: nullcontext(),
    ) -> SweepResult:
        """`limit`: seconds. `guard` surrounds each phase of training; it may stop the crew."""
        self.check()
        processes = processes_for(self.todo, parallel)
        with storage(self.folder):  # fails now rather than after the first hour
            (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            loop = SearchLoop(
                self.trials, self._source(), Budget(limit, processes, len(self.trials.seeds))
            )
            crew = crew_for(loop.take, processes)
            with guard(crew):
                for news in until_it_fails(crew, show, self._again):
                    loop.heard(news, crew)
            chosen = self._best(loop)
            test = self._tested(chosen, parallel, show, guard)
            return SweepResult(
                self.folder, self.wanted, self.space, self.by, tuple(loop.trials), chosen, test,
                loop.out_of_time,
            ).written()  # fmt: skip

    @property
    def _again(self) -> str:
        return f"the same command with --out {self.folder}"

    def _source(self) -> Source:
        if self.search.kind == "tune":
            return Tuner(self.space, self.search, self.rounds, self.by, self.folder)
        return Listed([trial.point for trial in self.planned])

    def _best(self, loop: SearchLoop) -> Trial:
        finished = [trial for trial in loop.trials if trial.state == "finished"]
        if finished:
            return max(finished, key=lambda trial: trial.score(self.by))
        reasons = [trial.why for trial in loop.trials if trial.why]
        if reasons:
            raise TooFewClients(f"no trial finished: {reasons[0]}")
        raise ConfigError(
            "--budget: not even one trial and then the chosen setting would end in time; `--plan` "
            "says what they cost"
        )

    def _tested(self, trial: Trial, parallel: int, show: Show, guard: Guard) -> FinalScore:
        """The one time that the test images are looked at."""
        if needs_holdout(trial.experiment):
            return _tested_as_it_is(trial)
        chosen = self.trials.chosen(trial)
        for cell in chosen.cells:
            cell.check()
        crew = MixedCrew(chosen.todo, parallel)
        lost = ""
        with guard(crew):
            for news in until_it_fails(crew, show, self._again):
                lost = news.why if news.state == "failed" else lost
        chosen = chosen.read_again(lost)
        spread = chosen.spread(self.by) if chosen.state == "finished" else None
        return FinalScore(spread, QUANTITIES[self.by], chosen, chosen.why)


def _tested_as_it_is(trial: Trial) -> FinalScore:
    """The models that the trials have ended with, on the test images."""
    from dcfl.trained.evaluate import evaluate

    accuracies = []
    which: Which = "best" if trial.experiment.output.keep_best else "last"
    for cell in trial.cells:
        images = load_dataset(replace(cell.cell.experiment.seeded.data, holdout=0.0))
        accuracies.append(evaluate(cell.path, images, which=which).accuracy)
    return FinalScore(Spread.of(accuracies), f"{which} model", trial)


def plan_sweep(
    experiment: Experiment,
    space: Space,
    search: Search,
    seeds: Sequence[int] = (),
    by: By = "ema",
    reuse: Sequence[Path] = (),
) -> SweepPlan:
    """In the folder that the config names, or in a new one."""
    if search.kind == "tune":
        optuna()  # refuses if it is not installed
    if len({*seeds}) < len(seeds):
        raise ConfigError("each seed may be named once")
    holdout = experiment.data.holdout or HOLDOUT
    held_back = apply(experiment, {"data": {"holdout": holdout}})
    given = experiment.output.dir
    folder = Path(given) if given else new_folder(f"{experiment.data.dataset}-sweep")
    trials = Trials(held_back, seeds or [experiment.federation.seed], folder, Shelf(reuse))
    return SweepPlan(experiment, fitted(space, held_back), search, by, trials)


def sweep(
    experiment_or_path: Experiment | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    search: str = "grid",
    seeds: Sequence[int] = (),
    out: str | Path | None = None,
    parallel: int = 0,
    budget: str = "",
) -> SweepResult:
    """Search for good settings, as `dcfl sweep` does, and test the chosen ones once.

    Trials are scored on training images that are kept back (`data.holdout`, by default a tenth).
    The point with the highest EMA, on average over the seeds, is then trained on all training
    images and scored on the test images.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: the built-in digits.
        settings: By dotted key. A list, and a range as text (`"0.001:1:log"`, `"1:5:int"`), are
            varied; anything else is fixed.
        search: `"grid"`: every combination; `"random 20"`: so many points drawn at random;
            `"tune 20"`: so many that Optuna proposes, which ends bad trials early.
        seeds: Each point is trained with each; by default the experiment's own.
        out: The folder of the trials, new or with trials of this sweep, which are not trained
            again; by default a new one in `runs/`.
        parallel: Trials at the same time, each in a process of its own; 0: as many as there are
            cores for; 1: one after the other, in this process.
        budget: Begin no trial that would not end in time: `"30m"`, `"2h"`.

    Returns:
        The trials, the chosen one, its score on the test images, its config file and the page.

    Raises:
        ConfigError: A key or a value is not possible, or there is nothing to vary.
        RunFolderError: The folder holds something else.

    Example:
        >>> import dcfl
        >>> found = dcfl.sweep(
        ...     settings={"training.lr": [0.01, 0.1], "federation.rounds": 2}, parallel=1
        ... )
        >>> found.chosen.point
        {'training.lr': 0.1}
        >>> found.config.name, found.report.name
        ('best.toml', 'report.html')
    """
    fixed, space = split_values(settings or {})
    experiment = experiment_from(experiment_or_path, fixed)
    if out is not None:
        experiment = load_experiment(experiment, **{"output.dir": str(out)})
    plan = plan_sweep(experiment, space, Search.named(search), seeds)
    limit = seconds_in(budget) if budget else None
    with shown_in_notebooks("sweep", plan.todo) as show:
        return plan.carry_out(parallel, limit, show)
