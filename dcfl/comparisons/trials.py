"""The trials of a sweep, and how much time they may take."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

from dcfl.comparisons.cell_costs import CellMeter
from dcfl.comparisons.cells import Cell, CellFolder, Shelf, folder_name, marks
from dcfl.comparisons.groups import Outcome
from dcfl.comparisons.pairs import Spread
from dcfl.comparisons.space import Point, tables_of
from dcfl.config import apply
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment

TRIALS = "trials"  # the folder that they are in
HOLDOUT = 0.1  # share of the training images that trials are scored on, unless the config says
By = Literal["ema", "max", "final"]
QUANTITIES: dict[By, str] = {
    "ema": "ema_accuracy",
    "max": "max_accuracy",
    "final": "final_accuracy",
}
State = Literal["finished", "failed", "unfinished"]


@dataclass(frozen=True)
class TrialCell:
    name: str
    experiment: Experiment
    number: int  # of the trial


@dataclass(frozen=True)
class Trial:
    """A point and its runs, as they were when their folders were first read."""

    number: int
    point: Point
    cells: tuple[CellFolder[TrialCell], ...]  # one per seed
    lost: str = ""  # why it has lost its clients, just now

    @property
    def experiment(self) -> Experiment:
        """The trial's experiment with its first seed."""
        return self.cells[0].cell.experiment

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
    def outcomes(self) -> list[Outcome]:
        """The outcomes of the seeds that have begun."""
        return [Outcome.of(cell.run) for cell in self.cells if cell.run is not None]

    def scores(self, by: By) -> list[float]:
        """The scores of the seeds that have begun."""
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


def with_images_kept_back(experiment: Experiment) -> Experiment:
    """The experiment as trials have it: scored on training images."""
    return apply(experiment, {"data": {"holdout": experiment.data.holdout or HOLDOUT}})


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
        return Trial(number, point, self._cells(number, point, TRIALS, self.experiment))

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
            shown_name = name if where == TRIALS else f"{where}/{name}"
            cells.append(CellFolder(TrialCell(shown_name, one, number), path))
        return tuple(cells)


UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds_in(text: str) -> float:
    """The seconds that `90s`, `30m`, `2h` or `1.5d` stand for."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?(s|m|min|h|d)", text.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"--budget {text}: a time such as 90s, 30m, 2h or 1d")
    return float(found[1]) * UNITS[found[2]]


class Budget:
    """The time that is left for trials. Without a limit, nothing is measured."""

    def __init__(self, limit: float | None, processes: int, seeds: int) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._meter = CellMeter(processes)
        self._turns = -(-seeds // processes)  # in which the chosen point is trained
        self._begun: dict[str, tuple[float, float]] = {}  # when, and the estimate
        self._ratios: list[float] = []  # of what cells took to what was estimated

    def allows(self, cell: CellFolder[Cell]) -> bool:
        """Whether the cell, and then the chosen point, would end in time."""
        if self.limit is None:
            return True
        estimate = self._meter.seconds(cell)
        self._begun[cell.name] = (time.monotonic(), estimate)
        ratio = fmean(self._ratios) if self._ratios else 1.0
        after = time.monotonic() - self._began + ratio * estimate * (1 + self._turns)
        return after <= self.limit

    def finished(self, cell: CellFolder[Cell]) -> None:
        """Learn from what the cell took: other programs may keep the machine busy."""
        if cell.name in self._begun:
            began, estimate = self._begun[cell.name]
            self._ratios.append((time.monotonic() - began) / max(estimate, 1e-6))
