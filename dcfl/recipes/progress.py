"""What a person sees while cells are trained: a line per finished cell, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from dcfl.recipes.cells import Kept
from dcfl.recipes.runner import News
from dcfl.recording import RecordedRun


class Progress:
    def __init__(self, todo: Sequence[Kept]) -> None:
        self.began = time.perf_counter()
        self.cells, self.ended = len(todo), 0
        self.rounds_left = {kept.cell.name: kept.rounds_left for kept in todo}
        self.all_rounds = max(sum(self.rounds_left.values()), 1)

    def after(self, news: News) -> None:
        name = news.kept.cell.name
        if news.state == "round":
            total = news.kept.cell.experiment.federation.rounds
            self.rounds_left[name] = total - news.round
            return
        self.rounds_left[name] = 0 if news.state != "stopped" else self.rounds_left[name]
        self.ended += 1
        text = news.why if news.state == "failed" else ""
        if news.state == "finished":
            summary = RecordedRun.open(news.kept.folder).summary
            text = f"MAX {summary['max_accuracy']:.2f}  EMA {summary['ema_accuracy']:.2f}"
            text += f"  {self._left()} left"
        print(
            f"[{self.ended}/{self.cells}] {name}  {news.state}  {text}".rstrip(),
            file=sys.stderr,
            flush=True,
        )

    def _left(self) -> str:
        left = sum(self.rounds_left.values())
        done = max(self.all_rounds - left, 1)
        seconds = (time.perf_counter() - self.began) * left / done
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
