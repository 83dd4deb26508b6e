"""What a person sees of a run while it trains: a line of text per round, or a bar in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from dcfl.data.settings import accuracy_words
from dcfl.experiment import Experiment
from dcfl.runs.rows import RoundRow
from dcfl.system.printable import printable

LONGEST_LABEL = 60  # characters
SECONDS_BETWEEN_UPDATES = 0.2  # of a bar


class ShowRound(Protocol):
    def __call__(self, row: RoundRow) -> None: ...


class Status:
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
        text = f"{self.accuracy}  {self.clients / elapsed:.0f} clients/s"
        text += f"  {lost} clients lost" if lost else ""
        return text + ("" if row.used else "  the model stays as it was"), left


def notices_of(row: RoundRow) -> list[str]:
    return [printable(f"dcfl: warning: {notice}") for notice in row.notices]


def plain_lines(label: str, experiment: Experiment) -> ShowRound:
    """About ten lines on standard error."""
    label, rounds = printable(label, LONGEST_LABEL), experiment.federation.rounds
    status = Status(experiment)
    every = max(1, rounds // 10)

    def show(row: RoundRow) -> None:
        for notice in notices_of(row):
            print(notice, file=sys.stderr, flush=True)
        text, left = status.after(row)
        if row.round % every == 0 or row.round in (1, rounds):
            line = f"{label}  round {row.round}/{rounds}  {text}  {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    return show


def in_notebook() -> bool:
    """Whether this is a kernel of Jupyter, Colab or the like."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


@contextmanager
def shown(label: str, experiment: Experiment, progress: bool | None) -> Iterator[ShowRound]:
    """Show rounds: None: only in a notebook; True: elsewhere too, as text."""
    notebook = progress is not False and in_notebook()
    if notebook:
        with _notebook_bar(label, experiment) as show:
            yield show
    else:
        yield plain_lines(label, experiment) if progress else lambda row: None


class Bar:
    """A bar as HTML, and as text where a frontend shows no HTML."""

    def __init__(self, label: str, rounds: int) -> None:
        self.label, self.rounds = printable(label, LONGEST_LABEL), rounds
        self.done, self.text = 0, "starts"

    def __repr__(self) -> str:
        return f"{self.label}  round {self.done}/{self.rounds}  {self.text}"

    def _repr_html_(self) -> str:
        return (
            f"<div>{escape(self.label)} "
            f'<progress max="{self.rounds}" value="{self.done}"></progress> '
            f"round {self.done}/{self.rounds} &nbsp; {escape(self.text)}</div>"
        )


@contextmanager
def _notebook_bar(label: str, experiment: Experiment) -> Iterator[ShowRound]:
    from IPython.display import display

    bar, status = Bar(label, experiment.federation.rounds), Status(experiment)
    handle: Any = display(bar, display_id=True)  # type: ignore[no-untyped-call]
    update: Callable[[Bar], None] = handle.update if handle else lambda bar: None
    updated = time.monotonic()

    def show(row: RoundRow) -> None:
        nonlocal updated
        for notice in notices_of(row):
            print(notice, file=sys.stderr)
        text, left = status.after(row)
        bar.done, bar.text = row.round, f"{text}  {left:.0f} s left"
        if time.monotonic() - updated >= SECONDS_BETWEEN_UPDATES:
            updated = time.monotonic()
            update(bar)

    try:
        yield show
        bar.text = status.accuracy
    except BaseException:
        bar.text = f"{status.accuracy}, stopped"
        raise
    finally:
        update(bar)
