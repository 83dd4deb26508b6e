"""The console, and how numbers, tables and downloads look on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from dcfl.system.wording import printable, quiet


def _console(**options: Any) -> Console:
    """A console without markup: a class may be called [/red]. NO_COLOR means no bold either."""
    colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(highlight=False, markup=False, emoji=False, color_system=colors, **options)


stdout = _console()
if not stdout.is_terminal:  # nothing is cut off in a file or a pipe
    stdout = _console(width=160)
stderr = _console(stderr=True)

BARS = "▁▂▃▄▅▆▇█"
LONGEST_NAME = 60  # characters of a name in a table or a list
NARROWEST = 40  # columns of a terminal that text is fitted to
WIDEST = 10_000


def sparkline(values: Sequence[float], width: int = 20) -> str:
    if not values:
        return ""
    width = min(width, len(values))
    # The last point of each slice, so that the line ends where the curve ends.
    points = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    low, high = min(points), max(points)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((point - low) * scale)] for point in points)


def duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    shown = f"{seconds:.0f}" if seconds >= 9.95 else f"{seconds:.2g}"
    return f"{shown} second{'' if shown == '1' else 's'}"


def short_duration(seconds: float) -> str:
    """A duration for a cell of a table."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"


def megabytes(count: float) -> str:
    """A number of bytes in the unit that shows at least one digit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


class PlainTable(Table):
    """Shows its cells as they are: names are other people's text, not markup. Where it is too wide,
    each row becomes a few lines: rich would leave columns out."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = self.__rich_measure__(console, options.update(max_width=WIDEST)).maximum
        if needed <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._in_lines()

    def _in_lines(self) -> RenderResult:
        """A line for each cell, and an empty one after each row."""
        if self.title:
            yield Text(str(self.title))
        names = [str(column.header) for column in self.columns]
        longest = max(map(len, names), default=0)
        for row in zip(*(column.cells for column in self.columns), strict=True):
            for name, cell in zip(names, row, strict=True):
                yield Text(f"{name:{longest}}  {str(cell).strip()}".rstrip())
            yield Text("")

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        plain = (_cell(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, **options)


def _cell(text: str) -> Text:
    return Text(printable(text, LONGEST_NAME))


def new_table(*columns: str, title: str | None = None, gap: int = 2) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    table = PlainTable(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    for position, column in enumerate(columns):
        table.add_column(_cell(column), justify="left" if position == 0 else "right", no_wrap=True)
    return table


ShowBytes = Callable[[int, int | None], None]


@contextmanager
def download_progress(label: str) -> Iterator[ShowBytes]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    label = printable(label, LONGEST_NAME)
    if stderr.is_terminal and not quiet():
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=stderr) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield lambda done, total: None
