"""What a person sees while waiting: rounds as they end, bytes as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from dcfl.cli import terminal
from dcfl.cli.terminal import LONGEST_NAME
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow, RoundRow
from dcfl.system.printable import printable
from dcfl.system.saying import quiet, say

ShowBytes = Callable[[int, int | None], None]
BYTES_PER_LINE = 50_000_000  # where the size of a download is unknown


class ShowRound(Protocol):
    def __call__(self, row: RoundRow) -> None: ...


@contextmanager
def progress(label: str, rounds: int, folder: Path) -> Iterator[ShowRound]:
    """Show each round of the run in `folder` as it ends: a live bar on a terminal, about ten plain
    lines elsewhere, and warnings."""
    label, warn_of = printable(label, LONGEST_NAME), _Warnings(folder)
    if quiet():
        yield warn_of
    elif terminal.stderr.is_terminal:
        with _live_bar(label, rounds, warn_of) as show:
            yield show
    else:
        yield _plain_lines(label, rounds, warn_of)


@contextmanager
def _live_bar(label: str, rounds: int, warn_of: ShowRound) -> Iterator[ShowRound]:
    columns = (
        _plain("{task.description}"),
        BarColumn(bar_width=24),
        _plain("round {task.completed}/{task.total}"),
        _plain("{task.fields[status]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=terminal.stderr) as bar:
        task = bar.add_task(label, total=rounds, status="")
        status = _Status(rounds)

        def show(row: RoundRow) -> None:
            warn_of(row)
            bar.update(task, completed=row.round, status=status.after(row)[0])

        yield show


def _plain(text: str) -> TextColumn:
    return TextColumn(text, markup=False)


def _plain_lines(label: str, rounds: int, warn_of: ShowRound) -> ShowRound:
    status = _Status(rounds)
    every = max(1, rounds // 10)

    def show(row: RoundRow) -> None:
        warn_of(row)
        text, left = status.after(row)
        if row.round % every == 0 or row.round in (1, rounds):
            say(f"{label}  round {row.round}/{rounds}  {text}  {left:.0f} s left")

    return show


class _Warnings:
    """A round's notices, and why clients are lost: once, or it would hide everything else."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, False

    def __call__(self, row: RoundRow) -> None:
        for notice in row.notices:
            _warn(notice)
        if row.ok < row.sampled and not self.told:
            self.told = True
            of_round = (c for c in RecordedRun(self.folder).each_client() if c.round == row.round)
            if lost := [client for client in of_round if client.outcome != "ok"]:
                _warn(_first_loss(lost, row.sampled))


def _warn(text: str) -> None:
    terminal.stderr.print(printable(f"dcfl: warning: {text}"), soft_wrap=True)


def _first_loss(lost: Sequence[ClientRow], sampled: int) -> str:
    first = lost[0]
    who = f"client {first.client}" + (f" ({first.site})" if first.site else "")
    why = f"{first.outcome}: {first.reason}" if first.reason else first.outcome
    more = f"; {len(lost)} of {sampled} were lost" if len(lost) > 1 else ""
    return f"round {first.round}: {who} {why}{more}; clients.jsonl has every reason"


class _Status:
    """Accuracy, speed and the time left, from the rounds seen so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.began = rounds, time.perf_counter()
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
            self.accuracy = f"accuracy {row.accuracy:.1f} %"
        text = f"{self.accuracy}  {self.clients / elapsed:.0f} clients/s"
        text += f"  {lost} clients lost" if lost else ""
        return text + ("" if row.used else "  the model stays as it was"), left


@contextmanager
def download_progress(label: str) -> Iterator[ShowBytes]:
    """Show bytes as they arrive: a bar on a terminal, a line every ten percent elsewhere."""
    label = printable(label, LONGEST_NAME)
    if terminal.stderr.is_terminal and not quiet():
        columns = (
            _plain("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=terminal.stderr) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield _download_lines(label)


def _download_lines(label: str) -> ShowBytes:
    last_shown = -1

    def show(done: int, total: int | None) -> None:
        nonlocal last_shown
        tenth = 10 * done // total if total else done // BYTES_PER_LINE
        if tenth != last_shown:
            last_shown = tenth
            of = f" of {total / 1e6:.0f}" if total else ""
            say(f"{label}  {done / 1e6:.0f}{of} MB")

    return show
