"""What a person sees while cells are trained: a line per finished cell, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import Outcome
from dcfl.studies.cells.cell_folders import Cell, CellFolder
from dcfl.studies.cells.parallel import News
from dcfl.system.printable import printable

SIGN_OF_LIFE = 600.0  # seconds between two lines, where there is no terminal


class Progress:
    def __init__(self, todo: Sequence[CellFolder[Cell]]) -> None:
        self.began = self._said = time.perf_counter()
        self.cells, self.ended = len(todo), 0
        self.rounds_left = {cell_folder.name: cell_folder.rounds_left for cell_folder in todo}
        self.all_rounds = max(sum(self.rounds_left.values()), 1)
        self._terminal = sys.stderr.isatty()

    def after(self, news: News) -> None:
        name = news.cell_folder.name
        if news.state == "round":
            total = news.cell_folder.cell.experiment.federation.rounds
            self.rounds_left[name] = total - news.round
            self._alive(f"{name}  round {news.round}/{total}  {self._left()} left")
            return
        self.rounds_left[name] = 0 if news.state != "stopped" else self.rounds_left[name]
        self.ended += 1
        text = printable(news.why) if news.state == "failed" else ""
        if news.state == "finished":
            outcome = Outcome.of(RecordedRun.open(news.cell_folder.path))
            text = f"MAX {outcome.max_accuracy:.2f}  EMA {outcome.ema_accuracy:.2f}"
            text += f"  {self._left()} left"
        self._say(f"[{self.ended}/{self.cells}] {name}  {news.state}  {text}".rstrip() + "\n")

    def _alive(self, text: str) -> None:
        """Cells may take hours. On a terminal, each line overwrites the one before."""
        if self._terminal:
            self._say(text)
        elif time.perf_counter() - self._said > SIGN_OF_LIFE:
            self._say(text + "\n")

    def _say(self, text: str) -> None:
        self._said = time.perf_counter()
        start = "\r\x1b[K" if self._terminal else ""
        print(start + text, end="", file=sys.stderr, flush=True)

    def _left(self) -> str:
        left = sum(self.rounds_left.values())
        done = max(self.all_rounds - left, 1)
        seconds = (time.perf_counter() - self.began) * left / done
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
