"""The trials of a sweep, or of a search: points, each trained with the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from dcfl.comparisons.cells import CellFolder, PlainCell, Shelf, folder_name, marks
from dcfl.comparisons.groups import BY, Outcome, Yardstick
from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import Point, plain, tables_of
from dcfl.config import apply
from dcfl.experiment import Experiment

TRIALS = "trials"  # the folder that they are in
HOLDOUT = 0.1  # share of the training images that trials are scored on, unless the config says
State = Literal["finished", "failed", "unfinished"]


@dataclass(frozen=True)
class Trial:
    """A point and its runs, as they were when their folders were first read."""

    number: int
    point: Point
    cells: tuple[CellFolder[PlainCell], ...]  # one per seed
    yardstick: Yardstick = BY["global"]  # by which trials are judged
    lost: str = ""  # why it has lost its clients, just now

    @property
    def experiment(self) -> Experiment:
        """The trial's experiment with its first seed."""
        return self.cells[0].cell.experiment

    @property
    def text(self) -> str:
        return ", ".join(f"{key} = {plain(value)}" for key, value in self.point.items())

    @cached_property
    def state(self) -> State:
        if all(cell.finished for cell in self.cells):
            return "finished"
        return "failed" if self.why else "unfinished"

    @cached_property
    def why(self) -> str:
        """Why it failed; empty if it did not."""
        return next((cell.failed for cell in self.cells if cell.failed), self.lost)

    @cached_property
    def outcomes(self) -> dict[int, Outcome]:
        """By seed, of those that have begun."""
        return {
            cell.cell.experiment.federation.seed: Outcome.of(cell.run)
            for cell in self.cells
            if cell.run is not None
        }

    @property
    def scores(self) -> dict[int, float]:
        """What trials are judged by, by seed."""
        return {
            seed: getattr(outcome, self.yardstick.quantity)
            for seed, outcome in self.outcomes.items()
        }

    @property
    def spread(self) -> Spread:
        return Spread.of([*self.scores.values()])

    @property
    def score(self) -> float:
        """The mean over seeds; NaN unless all seeds have finished."""
        return self.spread.mean if self.state == "finished" else math.nan

    @property
    def rounds(self) -> int:
        return max((outcome.rounds for outcome in self.outcomes.values()), default=0)

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes.values())

    def read_again(self, lost: str = "") -> Trial:
        cells = tuple(CellFolder(cell.cell, cell.path) for cell in self.cells)
        return replace(self, cells=cells, lost=lost or self.lost)


def with_images_kept_back(experiment: Experiment) -> Experiment:
    """The experiment as trials have it: scored on training images."""
    return apply(experiment, {"data": {"holdout": experiment.data.holdout or HOLDOUT}})


def needs_holdout(experiment: Experiment) -> bool:
    """Such runs choose by images that are kept back, and cannot be trained on all."""
    return experiment.federation.may_end_early or experiment.output.keep_best


@dataclass(frozen=True)
class Trials:
    experiment: Experiment
    seeds: Sequence[int]
    folder: Path
    shelf: Shelf
    yardstick: Yardstick = BY["global"]

    def trial(self, number: int, point: Point) -> Trial:
        cells = self._cells(point, TRIALS, self.experiment)
        return Trial(number, point, cells, self.yardstick)

    def chosen(self, trial: Trial) -> Trial:
        """The same point trained on all training images, and scored on the test images."""
        on_all = replace(self.experiment, data=replace(self.experiment.data, holdout=0.0))
        cells = self._cells(trial.point, "chosen", on_all)
        return Trial(trial.number, trial.point, cells, self.yardstick)

    def _cells(
        self, point: Point, where: str, experiment: Experiment
    ) -> tuple[CellFolder[PlainCell], ...]:
        varied = apply(experiment, tables_of(point))
        shown = {key: value for key, value in point.items() if key != "method.name"}
        cells = []
        for seed in self.seeds:
            one = apply(varied, {"federation": {"seed": seed}})
            name = folder_name(one.method.name, *marks(shown), f"seed{seed}")
            path = self.shelf.find(one) or self.folder / where / name
            shown_name = name if where == TRIALS else f"{where}/{name}"
            cells.append(CellFolder(PlainCell(shown_name, one), path))
        return tuple(cells)
