"""Which cell of a sweep is next, and what becomes of those that have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from dcfl.errors import TooFewClients
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.studies.cells.crew import Crew
from dcfl.studies.cells.news import AfterRound, News
from dcfl.studies.sweep.budget import Budget
from dcfl.studies.sweep.space import Point
from dcfl.studies.sweep.trials import PRUNED, Trial, TrialCell, Trials
from dcfl.system.storage import write_whole

BELOW_MEDIAN = "its best score so far was below the median of the other trials in that round"


class Source(Protocol):
    """Where points come from."""

    @property
    def prunes(self) -> bool:
        """Whether bad trials end early. The seeds of a point are then trained one by one, and the
        first decides."""

    def next(self, number: int) -> Point | None: ...

    def report(self, number: int, after: AfterRound) -> bool:
        """Whether the trial should end."""

    def end(self, trial: Trial) -> None: ...


class Listed:
    """Points that are known beforehand."""

    prunes = False

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points

    def next(self, number: int) -> Point | None:
        return self._points[number] if number < len(self._points) else None

    def report(self, number: int, after: AfterRound) -> bool:
        return False

    def end(self, trial: Trial) -> None:
        pass


class SearchLoop:
    def __init__(self, trials: Trials, source: Source, budget: Budget) -> None:
        self._make, self._source, self._budget = trials, source, budget
        self.trials: list[Trial] = []
        self.out_of_time = False
        self._waiting: deque[CellFolder[TrialCell]] = deque()

    def take(self) -> CellFolder[Cell] | None:
        """The next cell; None if there is none for now."""
        while not self.out_of_time:
            while self._waiting:
                if self._is_over(self.trials[self._waiting[0].cell.number]):
                    self._waiting.popleft()
                elif self._budget.allows(self._waiting[0]):
                    return self._waiting.popleft()
                else:
                    self.out_of_time = True
                    return None
            point = self._source.next(len(self.trials))
            if point is None:
                return None
            self._begin(self._make.trial(len(self.trials), point))
        return None

    def heard(self, news: News, crew: Crew) -> None:
        trial = self.trials[_number(news)]
        if news.after is not None:
            first = self._source.prunes and news.name == trial.cells[0].name
            if first and self._source.report(trial.number, news.after):
                crew.prune(news.cell_folder)
            return
        if news.state == "stopped":
            return
        if news.state == "finished":
            self._budget.finished(news.cell_folder)
        if news.state == "pruned":
            write_whole(news.cell_folder.path / PRUNED, BELOW_MEDIAN + "\n")
        lost = news.why if isinstance(news.error, TooFewClients) else ""
        trial = self.trials[trial.number] = trial.read_again(lost)
        if self._is_over(trial):
            self._source.end(trial)
        elif self._source.prunes:
            self._waiting.append(trial.todo[0])

    def _begin(self, trial: Trial) -> None:
        """A trial that may have been trained before, or in part."""
        for cell in trial.cells:
            cell.check()
        self.trials.append(trial)
        if self._is_over(trial):
            self._source.end(trial)
        elif self._source.prunes:
            for row in trial.cells[0].run.rounds if trial.cells[0].run else ():
                self._source.report(trial.number, AfterRound.of(row))
            self._waiting.append(trial.todo[0])
        else:
            self._waiting.extend(trial.todo)

    def _is_over(self, trial: Trial) -> bool:
        """Trials that Optuna ended are trained on by searches that end none."""
        over = ("finished", "failed", "pruned") if self._source.prunes else ("finished", "failed")
        return trial.state in over


def _number(news: News) -> int:
    cell = news.cell_folder.cell
    assert isinstance(cell, TrialCell)  # the loop has made it
    return cell.number
