"""What a person sees of a run while it trains: a line of text per round, or a bar in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from dcfl.data.settings import accuracy_words
from dcfl.experiment import Experiment
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow, RoundRow
from dcfl.system.wording import printable, say

LONGEST_LABEL = 60  # characters
SECONDS_BETWEEN_UPDATES = 0.2  # of a bar


ShowRound = Callable[[RoundRow], None]


def warn_on_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class RoundStatus:
    """Accuracy, speed and the time left, from the rounds seen so far."""

    def __init__(self, experiment: Experiment) -> None:
        self.rounds, self.began = experiment.federation.rounds, time.perf_counter()
        self._words = accuracy_words(experiment.data.holdout)
        self.first: int | None = None
        self.accuracy = "not scored yet"
        self.clients = 0

    def after(self, row: RoundRow) -> tuple[str, float]:
        """The status as text, and the seconds left."""
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


def lost_words(clients: int) -> str:
    return f"{clients:,} client{'' if clients == 1 else 's'} lost"


class Warnings:
    """A round's notices, and why clients are lost, unless a notice says so: once, or it would hide
    everything else."""

    def __init__(self, folder: Path, warn: Callable[[str], None] = warn_on_stderr) -> None:
        self.folder, self.warn, self.told = folder, warn, False

    def __call__(self, row: RoundRow) -> None:
        self.after(row.round, row.sampled - row.ok, row.notices)

    def after(self, round: int, lost: int, notices: Sequence[str]) -> None:
        for notice in notices:
            self.warn(printable(f"dcfl: warning: {notice}"))
        if lost and not self.told:
            self.told = True
            of_round = (row for row in RecordedRun(self.folder).each_client() if row.round == round)
            rows = [row for row in of_round if row.outcome != "ok"]
            if not all(any(row.reason in notice for notice in notices) for row in rows):
                self.warn(printable(f"dcfl: warning: {_first_loss(rows)}"))


def _first_loss(lost: Sequence[ClientRow]) -> str:
    first = lost[0]
    who = first.site or f"client {first.client}"
    why = f"{first.outcome}: {first.reason}" if first.reason else first.outcome
    more = f"; {len(lost)} clients were lost" if len(lost) > 1 else ""
    return f"round {first.round}: {who} {why}{more}; clients.jsonl has every reason"


def plain_lines(label: str, experiment: Experiment, warn_of: ShowRound) -> ShowRound:
    """About ten lines on standard error."""
    label, rounds = printable(label, LONGEST_LABEL), experiment.federation.rounds
    status = RoundStatus(experiment)
    every = max(1, rounds // 10)

    def show(row: RoundRow) -> None:
        warn_of(row)
        text, left = status.after(row)
        if row.round % every == 0 or row.round in (1, rounds):
            say(f"{label}  round {row.round}/{rounds}  {text}  {left:.0f} s left")

    return show


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, Colab or the like."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


@contextmanager
def shown(
    label: str, experiment: Experiment, folder: Path, progress: bool | None
) -> Iterator[ShowRound]:
    """Show rounds: None: only in a notebook; True: elsewhere too, as text."""
    notebook = progress is not False and in_notebook()
    if notebook:
        with _notebook_bar(label, experiment, Warnings(folder)) as show:
            yield show
    else:
        yield plain_lines(label, experiment, Warnings(folder)) if progress else lambda row: None


class Bar:
    """A bar as HTML, and as text where a frontend shows no HTML."""

    def __init__(self, label: str, rounds: int) -> None:
        self.label, self.rounds = printable(label, LONGEST_LABEL), rounds
        self.done, self.text = 0, "starts"
        self.update: Callable[[Bar], None] = lambda bar: None
        self._updated = time.monotonic()

    def show(self, done: int, text: str) -> None:
        self.done, self.text = done, text
        if time.monotonic() - self._updated >= SECONDS_BETWEEN_UPDATES:
            self._updated = time.monotonic()
            self.update(self)

    def __repr__(self) -> str:
        return f"{self.label}  round {self.done}/{self.rounds}  {self.text}"

    def _repr_html_(self) -> str:
        return (
            f"<div>{escape(self.label)} "
            f'<progress max="{self.rounds}" value="{self.done}"></progress> '
            f"round {self.done}/{self.rounds} &nbsp; {escape(self.text)}</div>"
        )


@contextmanager
def _notebook_bar(label: str, experiment: Experiment, warn_of: ShowRound) -> Iterator[ShowRound]:
    status = RoundStatus(experiment)
    with notebook_bar(label, experiment.federation.rounds) as bar:

        def show(row: RoundRow) -> None:
            warn_of(row)
            text, left = status.after(row)
            bar.show(row.round, f"{text}  {left:.0f} s left")

        try:
            yield show
            bar.text = status.accuracy
        except BaseException:
            bar.text = f"{status.accuracy}, stopped"
            raise


@contextmanager
def notebook_bar(label: str, rounds: int) -> Iterator[Bar]:
    """Shown below the cell that runs; its last state stays there."""
    from IPython.display import display

    bar = Bar(label, rounds)
    handle: Any = display(bar, display_id=True)  # type: ignore[no-untyped-call]
    if handle:
        bar.update = handle.update
    try:
        yield bar
    finally:
        bar.update(bar)
