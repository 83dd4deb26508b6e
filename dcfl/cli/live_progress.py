"""What a person sees while waiting: rounds as they end, bytes as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from dcfl.runs.round_progress import RoundStatus, ShowRound, Warnings, plain_lines
from dcfl.runs.rows import RoundRow
from dcfl.system.wording import printable, quiet, say

ShowBytes = Callable[[int, int | None], None]
BYTES_PER_LINE = 50_000_000  # where the size of a download is unknown


@contextmanager
def progress(label: str, experiment: Experiment, folder: Path) -> Iterator[ShowRound]:
    """Show each round of the run in `folder` as it ends: a live bar on a terminal, about ten plain
    lines elsewhere, and warnings."""
    label, warn_of = printable(label, LONGEST_NAME), Warnings(folder, _warn)
    if quiet():
        yield warn_of
    elif terminal.stderr.is_terminal:
        with _live_bar(label, experiment, warn_of) as show:
            yield show
    else:
        yield plain_lines(label, experiment, warn_of)


@contextmanager
def _live_bar(label: str, experiment: Experiment, warn_of: ShowRound) -> Iterator[ShowRound]:
    columns = (
        _plain("{task.description}"),
        BarColumn(bar_width=24),
        _plain("round {task.completed}/{task.total}"),
        _plain("{task.fields[status]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=terminal.stderr) as bar:
        task = bar.add_task(label, total=experiment.federation.rounds, status="")
        status = RoundStatus(experiment)

        def show(row: RoundRow) -> None:
            warn_of(row)
            bar.update(task, completed=row.round, status=status.after(row)[0])

        yield show


def _plain(text: str) -> TextColumn:
    return TextColumn(text, markup=False)


def _warn(text: str) -> None:
    terminal.stderr.print(text, soft_wrap=True)


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
