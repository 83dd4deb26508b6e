"""What a person sees while waiting: rounds as they end, bytes as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from dcfl.cli import terminal
from dcfl.cli.terminal import LONGEST_NAME
from dcfl.experiment import Experiment
from dcfl.runs.round_progress import ShowRound, Status, notices_of, plain_lines
from dcfl.runs.rows import RoundRow
from dcfl.system.printable import printable

ShowBytes = Callable[[int, int | None], None]
BYTES_PER_LINE = 50_000_000  # where the size of a download is unknown


@contextmanager
def progress(label: str, experiment: Experiment) -> Iterator[ShowRound]:
    """Show each round as it ends: a live bar on a terminal, about ten plain lines elsewhere."""
    if terminal.stderr.is_terminal:
        with _live_bar(printable(label, LONGEST_NAME), experiment) as show:
            yield show
    else:
        yield plain_lines(label, experiment)


@contextmanager
def _live_bar(label: str, experiment: Experiment) -> Iterator[ShowRound]:
    columns = (
        _plain("{task.description}"),
        BarColumn(bar_width=24),
        _plain("round {task.completed}/{task.total}"),
        _plain("{task.fields[status]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=terminal.stderr) as bar:
        task = bar.add_task(label, total=experiment.federation.rounds, status="")
        status = Status(experiment)

        def show(row: RoundRow) -> None:
            for notice in notices_of(row):
                terminal.stderr.print(notice, soft_wrap=True)
            bar.update(task, completed=row.round, status=status.after(row)[0])

        yield show


def _plain(text: str) -> TextColumn:
    return TextColumn(text, markup=False)


@contextmanager
def download_progress(label: str) -> Iterator[ShowBytes]:
    """Show bytes as they arrive: a bar on a terminal, a line every ten percent elsewhere."""
    label = printable(label, LONGEST_NAME)
    if terminal.stderr.is_terminal:
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
            print(f"{label}  {done / 1e6:.0f}{of} MB", file=sys.stderr, flush=True)

    return show
