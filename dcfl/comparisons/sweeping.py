"""A sweep from beginning to end: trials on kept-back images, the chosen point on test images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dcfl.comparisons.cells import (
    CellFolder,
    PlainCell,
    Shelf,
    refuse_another_study,
    require_few,
    require_free,
    runs_inside,
)
from dcfl.comparisons.crew import Guard, train
from dcfl.comparisons.groups import yardstick
from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import CHOOSERS, Space, require_possible, split_values, tables_of
from dcfl.comparisons.sweep_result import FinalScore, SweepResult
from dcfl.comparisons.trainer import Show
from dcfl.comparisons.trials import (
    Trial,
    Trials,
    needs_holdout,
    with_images_kept_back,
)
from dcfl.config import apply, experiment_from, load_experiment
from dcfl.data import Dataset, load_dataset
from dcfl.errors import ConfigError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.runs.folder import new_folder
from dcfl.runs.model_file import Which
from dcfl.runs.prepare import with_own_data
from dcfl.runs.progress import shown_in_notebooks
from dcfl.system.locks import locked
from dcfl.system.storage import storage


@dataclass(frozen=True)
class SweepPlan:
    wanted: Experiment  # without what is varied, as the user has it
    space: Space
    trials: Trials

    @property
    def folder(self) -> Path:
        return self.trials.folder

    @cached_property
    def planned(self) -> list[Trial]:
        """All trials, as their folders were when first read."""
        return self._all()

    def _all(self) -> list[Trial]:
        return [self.trials.trial(*numbered) for numbered in enumerate(self.space.points)]

    @property
    def todo(self) -> list[CellFolder[PlainCell]]:
        return [cell for trial in self.planned for cell in trial.cells if not cell.ended]

    @property
    def chosen_todo(self) -> list[CellFolder[PlainCell]]:
        """Runs of the chosen setting that are left, as far as it is known: others cost about the
        same. None where trials are tested as they are."""
        finished = [trial for trial in self.planned if trial.state == "finished"]
        best = max(finished, key=lambda trial: trial.score, default=self.planned[0])
        if needs_holdout(best.experiment):
            return []
        return [cell for cell in self.trials.chosen(best).cells if not cell.ended]

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
        show: Show = lambda news: None,
        guard: Guard = lambda crew: nullcontext(),
    ) -> SweepResult:
        """`guard` surrounds each phase of training."""
        self.check()
        with storage(self.folder):  # fails now rather than after the first hour
            (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            # Read now: another process may have trained some of them before it gave way.
            trials = self._trained(self._all(), parallel, show, guard)
            finished = [trial for trial in trials if trial.state == "finished"]
            if not finished:
                raise TooFewClients(f"no trial finished: {trials[0].why}")
            best = max(finished, key=lambda trial: trial.score)
            if needs_holdout(best.experiment):
                test = _tested_as_it_is(best)
            else:
                (on_all,) = self._trained([self.trials.chosen(best)], parallel, show, guard)
                test = FinalScore(None if on_all.why else on_all.spread, on_all)
            return SweepResult(
                self.folder, self.wanted, self.space, tuple(trials), best, test
            ).written()

    def _trained(
        self, trials: Sequence[Trial], parallel: int, show: Show, guard: Guard
    ) -> list[Trial]:
        """The trials, once what is left of them is trained."""
        cells = [cell for trial in trials for cell in trial.cells]
        for cell in cells:
            cell.check()
        lost = train(cells, parallel, show, guard, f"the same command with --out {self.folder}")
        whys = ([lost.get(cell.name, "") for cell in trial.cells] for trial in trials)
        return [trial.read_again(max(why)) for trial, why in zip(trials, whys, strict=True)]


def _tested_as_it_is(trial: Trial) -> FinalScore:
    from dcfl.trained.evaluate import evaluate

    accuracies = []
    which: Which = "best" if trial.experiment.output.keep_best else "last"
    for cell in trial.cells:
        images = load_dataset(replace(cell.cell.experiment.seeded_data, holdout=0.0))
        accuracies.append(evaluate(cell.path, images, which=which).accuracy)
    return FinalScore(Spread.of(accuracies), trial)


def plan_sweep(
    experiment: Experiment,
    space: Space,
    seeds: Sequence[int] = (),
    reuse: Sequence[Path] = (),
    by: str = "",
) -> SweepPlan:
    require_few(len(seeds), math.prod(len(dimension.values) for dimension in space.dimensions))
    if len({*seeds}) < len(seeds):
        raise ConfigError("each seed may be named once")
    held_back = with_images_kept_back(experiment)
    require_possible(space, held_back)
    given = experiment.output.dir
    folder = Path(given) if given else new_folder(f"{experiment.data.dataset}-sweep")
    points = (apply(held_back, tables_of(point)) for point in space.points)
    measure = yardstick(by, any(point.own_models for point in points))
    seeds = seeds or [experiment.federation.seed]
    trials = Trials(held_back, seeds, folder, Shelf(reuse), measure)
    return SweepPlan(experiment, space, trials)


def sweep(
    experiment_or_path: Experiment | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    seeds: Sequence[int] = (),
    dataset: Dataset | None = None,
    out: str | Path | None = None,
    parallel: int = 0,
    by: str = "",
) -> SweepResult:
    """Search for good settings, as `dcfl sweep` does, and test the chosen ones once.

    Trials are scored on training images that are kept back (`data.holdout`, by default a tenth).
    The point with the highest EMA, on average over the seeds, is then trained on all training
    images and scored on the test images; where clients have models of their own, the one that is
    best by these.

    Args:
        experiment_or_path: An Experiment, a config file, or nothing: the built-in digits.
        settings: By dotted key. Lists are varied, and every combination is tried; anything else is
            fixed.
        seeds: Each point is trained with each; by default the experiment's own.
        dataset: The images, instead of those the config names; saved in the folder, once.
        out: The folder of the trials, new or with trials of this sweep, which are not trained
            again; by default a new one in `runs/`.
        parallel: Trials at the same time, each in a process of its own; 0: as many as there are
            cores for; 1: one after the other, in this process.
        by: What points are judged by, "global" or "clients", as in `compare`.

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
    plan = plan_sweep(experiment, space, seeds, by=by)
    if dataset is not None:
        dataset.save(plan.folder)
    return plan.carry_out(parallel, shown_in_notebooks([*plan.todo, *plan.chosen_todo]))
