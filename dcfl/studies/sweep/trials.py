"""A point of a sweep, trained with one seed or several: what became of it, and its score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from dcfl.config import apply
from dcfl.experiment import Experiment
from dcfl.runs.groups import Outcome
from dcfl.runs.pairs import Spread
from dcfl.studies.cells.cell_folders import CellFolder
from dcfl.studies.cells.naming import folder_name, marks
from dcfl.studies.cells.shelf import Shelf
from dcfl.studies.sweep.space import Point, tables_of

PRUNED = "pruned.txt"  # in the folder of a trial that was ended early: says why
By = Literal["ema", "max", "final"]
QUANTITIES: dict[By, str] = {
    "ema": "ema_accuracy",
    "max": "max_accuracy",
    "final": "final_accuracy",
}
State = Literal["finished", "pruned", "failed", "unfinished"]


@dataclass(frozen=True)
class TrialCell:
    name: str
    experiment: Experiment
    number: int  # of the trial


@dataclass(frozen=True)
class Trial:
    """As it was when its folders were first read."""

    number: int
    point: Point
    cells: tuple[CellFolder[TrialCell], ...]  # one per seed
    lost: str = ""  # why it has lost its clients, just now

    @property
    def experiment(self) -> Experiment:
        """With its first seed."""
        return self.cells[0].cell.experiment

    @cached_property
    def state(self) -> State:
        if all(cell.finished for cell in self.cells):
            return "finished"
        if self.why:
            return "failed"
        pruned = any((cell.path / PRUNED).is_file() and not cell.finished for cell in self.cells)
        return "pruned" if pruned else "unfinished"

    @cached_property
    def why(self) -> str:
        """It failed; empty if it did not."""
        return next((cell.failed for cell in self.cells if cell.failed), self.lost)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """Of the seeds that have begun."""
        return [Outcome.of(cell.run) for cell in self.cells if cell.run is not None]

    def scores(self, by: By) -> list[float]:
        """Of the seeds that have begun."""
        return [getattr(outcome, QUANTITIES[by]) for outcome in self.outcomes]

    def spread(self, by: By) -> Spread:
        return Spread.of(self.scores(by))

    def score(self, by: By) -> float:
        """NaN unless all seeds have finished."""
        return self.spread(by).mean if self.state == "finished" else math.nan

    @property
    def rounds(self) -> int:
        return max((outcome.rounds for outcome in self.outcomes), default=0)

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def todo(self) -> list[CellFolder[TrialCell]]:
        return [cell for cell in self.cells if not cell.ended]

    def read_again(self, lost: str = "") -> Trial:
        cells = tuple(CellFolder(cell.cell, cell.path) for cell in self.cells)
        return Trial(self.number, self.point, cells, lost or self.lost)


def needs_holdout(experiment: Experiment) -> bool:
    """Such runs choose by images that are kept back, and cannot be trained on all."""
    return experiment.federation.may_end_early or experiment.output.keep_best


@dataclass(frozen=True)
class Trials:
    """Makes the trials of a sweep."""

    experiment: Experiment
    seeds: Sequence[int]
    folder: Path
    shelf: Shelf

    def trial(self, number: int, point: Point) -> Trial:
        return Trial(number, point, self._cells(number, point, "trials", self.experiment))

    def chosen(self, trial: Trial) -> Trial:
        """The same point trained on all training images, and scored on the test images."""
        on_all = replace(self.experiment, data=replace(self.experiment.data, holdout=0.0))
        cells = self._cells(trial.number, trial.point, "chosen", on_all)
        return Trial(trial.number, trial.point, cells)

    def _cells(
        self, number: int, point: Point, where: str, experiment: Experiment
    ) -> tuple[CellFolder[TrialCell], ...]:
        varied = apply(experiment, tables_of(point))
        shown = {key: value for key, value in point.items() if key != "method.name"}
        cells = []
        for seed in self.seeds:
            one = apply(varied, {"federation": {"seed": seed}})
            name = folder_name(one.method.name, *marks(shown), f"seed{seed}")
            path = self.shelf.find(one) or self.folder / where / name
            shown_name = name if where == "trials" else f"{where}/{name}"
            cells.append(CellFolder(TrialCell(shown_name, one, number), path))
        return tuple(cells)
