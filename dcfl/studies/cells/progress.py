"""What a person sees while cells are trained: a line per finished cell, and the time left."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import Outcome
from dcfl.runs.round_progress import (
    Bar,
    Warnings,
    in_notebook,
    lost_words,
    notebook_bar,
    warn_on_stderr,
)
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.studies.cells.news import AfterRound, News, Show
from dcfl.system.printable import printable
from dcfl.system.saying import say

SIGN_OF_LIFE = 600.0  # seconds between two lines, where there is no terminal


class Progress:
    def __init__(
        self, todo: Sequence[CellFolder[Cell]], more_cells: int = 0, more_rounds: int = 0
    ) -> None:
        """`more_cells`, `more_rounds`: that are not planned yet."""
        self.began = self._said = time.perf_counter()
        self.cells, self.ended = len(todo) + more_cells, 0
        self.rounds = sum(cell_folder.rounds_left for cell_folder in todo) + more_rounds
        self.done = 0  # rounds, with those that nobody needs any more
        self._reached: dict[str, int] = {}  # the last round of each
        self._running: dict[str, str] = {}  # what is said of those that are being trained
        self._warnings: dict[str, Warnings] = {}
        self._terminal = sys.stderr.isatty()

    def after(self, news: News) -> None:
        if news.after is not None:
            self._after_round(news, news.after)
            return
        name = news.name
        self._running.pop(name, None)
        if news.state != "stopped":
            rounds = news.cell_folder.cell.experiment.federation.rounds
            self.done += rounds - self._reached.get(name, 0)
        self.ended += 1
        text = printable(news.why) if news.state == "failed" else ""
        if news.state == "finished":
            outcome = Outcome.of(RecordedRun.open(news.cell_folder.path))
            text = f"MAX {outcome.max_accuracy:.2f}  EMA {outcome.ema_accuracy:.2f}"
            text += f"  {self._left()} left"
        line = f"[{self.ended}/{self.cells}] {printable(name)}  {news.state}  {text}".rstrip()
        self._say(line + "\n")

    def _after_round(self, news: News, after: AfterRound) -> None:
        total = news.cell_folder.cell.experiment.federation.rounds
        self.done += 1
        self._reached[news.name] = after.round
        if news.name not in self._warnings:
            warn = partial(self._warn, printable(news.name))
            self._warnings[news.name] = Warnings(news.cell_folder.path, warn)
        self._warnings[news.name].after(after.round, after.lost, after.notices)
        said = f"{printable(news.name)}  round {after.round}/{total}"
        if after.accuracy is not None:
            said += f"  {after.accuracy:.1f} %"
        if after.lost:
            said += f"  {lost_words(after.lost)}"
        self._running[news.name] = said
        self._alive()

    def _alive(self) -> None:
        """Cells may take hours. On a terminal, each line overwrites the one before."""
        text = "   ".join([f"{self._left()} left", *self._running.values()])
        if self._terminal:
            self._say(text[: shutil.get_terminal_size().columns - 1])
        elif time.perf_counter() - self._said > SIGN_OF_LIFE:
            self._say(text + "\n")

    def _warn(self, name: str, text: str) -> None:
        """Also for people who want it quiet."""
        start = "\r\x1b[K" if self._terminal else ""
        warn_on_stderr(f"{start}{name}  {text}")

    def _say(self, text: str) -> None:
        self._said = time.perf_counter()
        start = "\r\x1b[K" if self._terminal else ""
        say(start + text, end="")

    def _left(self) -> str:
        left = max(self.rounds - self.done, 0)
        seconds = (time.perf_counter() - self.began) * left / max(self.done, 1)
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


class _NotebookProgress(Progress):
    """The live line of a terminal, below a notebook's cell."""

    def __init__(self, todo: Sequence[CellFolder[Cell]], bar: Bar) -> None:
        super().__init__(todo)
        self._bar, self._terminal = bar, True

    def _warn(self, name: str, text: str) -> None:
        warn_on_stderr(f"{name}  {text}")

    def _say(self, text: str) -> None:
        self._bar.rounds = max(self.rounds, self.done)
        self._bar.show(self.done, text.strip())


@contextmanager
def shown_in_notebooks(label: str, todo: Sequence[CellFolder[Cell]]) -> Iterator[Show]:
    """Elsewhere, studies begun from Python are silent."""
    if not in_notebook():
        yield lambda news: None
        return
    with notebook_bar(label, sum(cell.rounds_left for cell in todo)) as bar:
        yield _NotebookProgress(todo, bar).after
