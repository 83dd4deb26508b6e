"""What a person sees while cells are trained: a line per finished cell, and the time left."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from dcfl import errors
from dcfl.comparisons.cells import Cell, CellFolder
from dcfl.comparisons.groups import Outcome
from dcfl.errors import DCFLError
from dcfl.runs.folder import RecordedRun
from dcfl.runs.round_progress import (
    Bar,
    Warnings,
    in_notebook,
    lost_words,
    notebook_bar,
    warn_on_stderr,
)
from dcfl.runs.rows import RoundRow
from dcfl.system.wording import printable, say

State = Literal["round", "finished", "stopped", "pruned", "failed"]


@dataclass(frozen=True)
class News:
    cell_folder: CellFolder[Cell]
    state: State
    row: RoundRow | None = None
    why: str = ""
    kind: str = ""  # the name of the error's class, if it failed

    @classmethod
    def failure(cls, cell_folder: CellFolder[Cell], error: Exception) -> News:
        kind = type(error).__name__
        why = str(error) if isinstance(error, DCFLError) else f"{kind}: {error}"
        return cls(cell_folder, "failed", why=why, kind=kind)

    @property
    def name(self) -> str:
        return self.cell_folder.name

    @property
    def round(self) -> int:
        return self.row.round if self.row else 0

    @property
    def error(self) -> Exception | None:
        """Why it failed, as the error that was raised where it was trained."""
        if self.state != "failed":
            return None
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, DCFLError):
            return kind(self.why)
        return RuntimeError(f"{self.name}: {self.why}")


Show = Callable[[News], None]
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
        if news.row is not None:
            self._after_round(news, news.row)
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

    def _after_round(self, news: News, row: RoundRow) -> None:
        name, total = printable(news.name), news.cell_folder.cell.experiment.federation.rounds
        self.done += 1
        self._reached[news.name] = row.round
        if news.name not in self._warnings:
            warn = partial(self._warn, name)
            self._warnings[news.name] = Warnings(news.cell_folder.path, warn)
        self._warnings[news.name](row)
        said = f"{name}  round {row.round}/{total}"
        if row.accuracy is not None:
            said += f"  {row.accuracy:.1f} %"
        if lost := row.sampled - row.ok:
            said += f"  {lost_words(lost)}"
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
        """Warnings are also for people who want it quiet."""
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
