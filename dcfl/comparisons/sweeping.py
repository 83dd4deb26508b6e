"""A sweep from beginning to end: trials on kept-back images, the chosen point on test images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dcfl.comparisons.cells import (
    Cell,
    CellFolder,
    Shelf,
    refuse_another_study,
    require_few,
    require_free,
    runs_inside,
)
from dcfl.comparisons.crew import Guard, MixedCrew, crew_for, processes_for, until_it_fails
from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.searches import Search
from dcfl.comparisons.space import CHOOSERS, Space, fitted, split_values
from dcfl.comparisons.sweep_result import FinalScore, SweepResult
from dcfl.comparisons.trainer import News, Show
from dcfl.comparisons.trials import (
    QUANTITIES,
    Budget,
    By,
    Trial,
    TrialCell,
    Trials,
    needs_holdout,
    seconds_in,
    with_images_kept_back,
)
from dcfl.config import experiment_from, load_experiment
from dcfl.data import Dataset, load_dataset
from dcfl.errors import ConfigError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.runs.folder import new_folder
from dcfl.runs.model_file import Which
from dcfl.runs.prepare import with_own_data
from dcfl.runs.progress import shown_in_notebooks
from dcfl.system.locks import locked
from dcfl.system.storage import storage


class SearchLoop:
    """Hands out the cells of all trials, as long as there is time."""

    def __init__(self, trials: Sequence[Trial], budget: Budget) -> None:
        self._planned, self._budget = iter(trials), budget
        self.trials: list[Trial] = []  # those that have begun
        self.out_of_time = False
        self._waiting: Iterator[CellFolder[TrialCell]] = iter(())

    def take(self) -> CellFolder[Cell] | None:
        """The next cell; None if there is none."""
        while not self.out_of_time:
            for cell in self._waiting:
                if self.trials[cell.cell.number].why:  # another seed has failed meanwhile
                    continue
                if self._budget.allows(cell):
                    return cell
                self.out_of_time = True
                return None
            trial = next(self._planned, None)
            if trial is None:
                return None
            for cell in trial.cells:
                cell.check()
            self.trials.append(trial)
            self._waiting = iter([] if trial.why else trial.todo)
        return None

    def heard(self, news: News) -> None:
        if news.state in ("round", "stopped"):
            return
        if news.state == "finished":
            self._budget.finished(news.cell_folder)
        cell = news.cell_folder.cell
        assert isinstance(cell, TrialCell)  # the loop has handed it out
        lost = news.why if isinstance(news.error, TooFewClients) else ""
        self.trials[cell.number] = self.trials[cell.number].read_again(lost)


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
        """All trials, as their folders were when first read."""
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
        inside = [run for where in ("trials", "chosen") for run in runs_inside(self.folder / where)]
        if not inside:
            data = Path(self.wanted.data.dataset).name
            require_free(self.folder, ("trials", "chosen", data))
        sections = {f"{key.partition('.')[0]}." for key in self.space.keys if key in CHOOSERS}
        for run in inside:
            also = ["data.holdout"] if run.folder.parent.name == "chosen" else []
            ignored = [*self.space.keys, *sections, *also]
            refuse_another_study("sweep", self.folder, self.trials.experiment, run, ignored)

    def carry_out(
        self,
        parallel: int = 0,
        limit: float | None = None,
        show: Show = lambda news: None,
        guard: Guard = lambda crew: nullcontext(),
    ) -> SweepResult:
        """`limit`: seconds. `guard` surrounds each phase of training."""
        self.check()
        processes = processes_for(self.todo, parallel)
        with storage(self.folder):  # fails now rather than after the first hour
            (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            # Read now: another process may have trained some of them before it gave way.
            trials = [self.trials.trial(one.number, one.point) for one in self.planned]
            loop = SearchLoop(trials, Budget(limit, processes, len(self.trials.seeds)))
            crew = crew_for(loop.take, processes)
            with guard(crew):
                for news in until_it_fails(crew, show, self._again):
                    loop.heard(news)
            chosen = self._best(loop)
            test = self._tested(chosen, parallel, show, guard)
            return SweepResult(
                self.folder, self.wanted, self.space, self.by, tuple(loop.trials), chosen, test,
                loop.out_of_time,
            ).written()  # fmt: skip

    @property
    def _again(self) -> str:
        return f"the same command with --out {self.folder}"

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
        images = load_dataset(replace(cell.cell.experiment.seeded_data, holdout=0.0))
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
    """A sweep in the folder that the config names, or in a new one."""
    grid = math.prod(len(dimension.ends) for dimension in space.dimensions)
    require_few(len(seeds), search.count or grid)
    if len({*seeds}) < len(seeds):
        raise ConfigError("each seed may be named once")
    held_back = with_images_kept_back(experiment)
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
    dataset: Dataset | None = None,
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
        search: `"grid"`: every combination; `"random 20"`: so many points drawn at random.
        seeds: Each point is trained with each; by default the experiment's own.
        dataset: The images, instead of those the config names; saved in the folder, once.
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
    if dataset is not None:
        folder = Path(experiment.output.dir or new_folder(f"{dataset.name}-sweep"))
        experiment, _ = with_own_data(experiment, dataset, folder)
    plan = plan_sweep(experiment, space, Search.named(search), seeds)
    if dataset is not None:
        dataset.save(plan.folder)
    limit = seconds_in(budget) if budget else None
    return plan.carry_out(parallel, limit, shown_in_notebooks(plan.todo))
