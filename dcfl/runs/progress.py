"""What a person sees while rounds are trained, of one run and of many: lines of text, on a terminal
a bar."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dcfl.data.settings import accuracy_words
from dcfl.experiment import Experiment
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow, RoundRow
from dcfl.system.wording import printable, quiet, say

if TYPE_CHECKING:
    from rich.console import Console

    from dcfl.comparisons.cells import Cell, CellFolder
    from dcfl.comparisons.crew import News

LONGEST_LABEL = 60  # characters
SIGN_OF_LIFE = 600.0  # seconds between two lines about many runs, where there is no terminal

ShowRound = Callable[[RoundRow], None]


def _warn_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def lost_words(clients: int) -> str:
    return f"{clients:,} client{'' if clients == 1 else 's'} lost"


class Warnings:
    """A round's notices, and why clients are lost, unless a notice says so: once, or it would hide
    everything else."""

    def __init__(self, folder: Path, warn: Callable[[str], None] = _warn_on_stderr) -> None:
        self.folder, self.warn, self.told = folder, warn, False

    def __call__(self, row: RoundRow) -> None:
        for notice in row.notices:
            self.warn(printable(f"dcfl: warning: {notice}"))
        if row.sampled > row.ok and not self.told:
            self.told = True
            clients = RecordedRun(self.folder).each_client()
            lost = [one for one in clients if one.round == row.round and one.outcome != "ok"]
            if not all(any(one.reason in notice for notice in row.notices) for one in lost):
                self.warn(printable(f"dcfl: warning: {_first_loss(lost)}"))


def _first_loss(lost: Sequence[ClientRow]) -> str:
    first = lost[0]
    who = first.site or f"client {first.client}"
    why = f"{first.outcome}: {first.reason}" if first.reason else first.outcome
    more = f"; {len(lost)} clients were lost" if len(lost) > 1 else ""
    return f"round {first.round}: {who} {why}{more}; clients.jsonl has every reason"


class RoundStatus:
    def __init__(self, experiment: Experiment) -> None:
        self.rounds, self.began = experiment.federation.rounds, time.perf_counter()
        whose = "the global model's " if experiment.own_models else ""
        self._words = whose + accuracy_words(experiment.data.holdout)
        self.first: int | None = None
        self.accuracy = "not scored yet"
        self.clients = 0

    def after(self, row: RoundRow) -> tuple[str, float]:
        self.first = row.round - 1 if self.first is None else self.first
        self.clients += row.sampled
        elapsed = max(time.perf_counter() - self.began, 1e-9)
        left = elapsed / (row.round - self.first) * (self.rounds - row.round)
        lost = row.sampled - row.ok
        if row.accuracy is not None:
            self.accuracy = f"{self._words} {row.accuracy:.1f} %"
        rate = self.clients / elapsed
        text = f"{self.accuracy}  {rate:.{0 if rate >= 10 else 1}f} clients/s"
        text += f"  {lost_words(lost)}" if lost else ""
        return text + ("" if row.used else "  the model stays as it was"), left


@contextmanager
def shown(
    label: str,
    experiment: Experiment,
    folder: Path,
    progress: bool | None = None,
    console: Console | None = None,
) -> Iterator[ShowRound]:
    """Show each round of the run in `folder` as it ends, and warnings: on a console that is a
    terminal as a live bar, elsewhere as about ten lines. `progress` None, without a console: only
    in a notebook."""
    label, rounds = printable(label, LONGEST_LABEL), experiment.federation.rounds
    warn = partial(console.print, soft_wrap=True) if console else _warn_on_stderr
    warn_of, status = Warnings(folder, warn), RoundStatus(experiment)

    def drawn(draw: Callable[[int, str, float], object]) -> ShowRound:
        def show(row: RoundRow) -> None:
            warn_of(row)
            draw(row.round, *status.after(row))

        return show

    def line(done: int, text: str, left: float) -> None:
        if done % max(1, rounds // 10) == 0 or done in (1, rounds):
            say(f"{label}  round {done}/{rounds}  {text}  {left:.0f} s left")

    if console and console.is_terminal and not quiet():
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        texts = (
            "{task.description}",
            "round {task.completed}/{task.total}",
            "{task.fields[status]}",
        )
        name, count, state = (TextColumn(text, markup=False) for text in texts)
        columns = (name, BarColumn(bar_width=24), count, state, TimeRemainingColumn(compact=True))
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(label, total=rounds, status="")
            yield drawn(lambda done, text, _: bar.update(task, completed=done, status=text))
    else:
        wanted = console or (in_notebook() if progress is None else progress)
        yield drawn(line) if wanted else lambda row: None


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class Progress:
    """Of many runs: a line for each that has ended, and what is being trained. That line is
    overwritten on a terminal."""

    def __init__(self, todo: Sequence[CellFolder[Cell]]) -> None:
        self.began = self._said = time.perf_counter()
        self.cells, self.ended = len(todo), 0
        self.rounds = sum(cell_folder.rounds_left for cell_folder in todo)
        self.done = 0  # rounds, with those that nobody needs any more
        self._reached: dict[str, int] = {}  # the last round of each
        self._running: dict[str, str] = {}  # what is said of those that are being trained
        self._warnings: dict[str, Warnings] = {}
        self._start = "\r\x1b[K" if sys.stderr.isatty() else ""

    def after(self, news: News) -> None:
        name, total = news.name, news.cell_folder.cell.experiment.federation.rounds
        if news.row is not None:
            self._after_round(news, news.row, total)
            return
        self._running.pop(name, None)
        if news.state != "stopped":
            self.done += total - self._reached.get(name, 0)
        self.ended += 1
        text = printable(news.why) if news.state == "failed" else ""
        if news.state == "finished":
            outcome = news.outcome
            text = f"MAX {outcome.max_accuracy:.2f}  EMA {outcome.ema_accuracy:.2f}"
            if news.cell_folder.cell.experiment.own_models:
                text = f"clients' own {outcome.own_accuracy:.2f}"
            text += f"  {self._left()} left"
        line = f"[{self.ended}/{self.cells}] {printable(name)}  {news.state}  {text}".rstrip()
        self._say(line + "\n")

    def _after_round(self, news: News, row: RoundRow, total: int) -> None:
        """Cells may take hours, so that a sign of life is wanted between two that end."""
        name = printable(news.name)
        self.done += 1
        self._reached[news.name] = row.round
        if news.name not in self._warnings:  # which are also for people who want it quiet
            self._warnings[news.name] = Warnings(
                news.cell_folder.path, lambda text: _warn_on_stderr(f"{self._start}{name}  {text}")
            )
        self._warnings[news.name](row)
        said = f"{name}  round {row.round}/{total}"
        if row.accuracy is not None:
            said += f"  {row.accuracy:.1f} %"
        if lost := row.sampled - row.ok:
            said += f"  {lost_words(lost)}"
        self._running[news.name] = said
        text = "   ".join([f"{self._left()} left", *self._running.values()])
        if self._start:
            self._say(text[: shutil.get_terminal_size().columns - 1])
        elif time.perf_counter() - self._said > SIGN_OF_LIFE:
            self._say(text + "\n")

    def _say(self, text: str) -> None:
        self._said = time.perf_counter()
        say(self._start + text, end="")

    def _left(self) -> str:
        left = max(self.rounds - self.done, 0)
        seconds = (time.perf_counter() - self.began) * left / max(self.done, 1)
        return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def shown_in_notebooks(todo: Sequence[CellFolder[Cell]]) -> Callable[[News], None]:
    """Elsewhere, studies begun from Python are silent."""
    return Progress(todo).after if in_notebook() else lambda news: None
