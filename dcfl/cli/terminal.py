"""The two consoles, and how tables and curves are drawn on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dcfl.system.printable import printable

# Without markup: a class may be called [/red].
stdout = Console(highlight=False, markup=False, emoji=False)
if not stdout.is_terminal:  # nothing is cut off in a file or a pipe
    stdout = Console(highlight=False, markup=False, emoji=False, width=160)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)

BARS = "▁▂▃▄▅▆▇█"
LONGEST_NAME = 60  # characters of a name in a table or a list


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """The curve in one line of text, scaled from its lowest to its highest value."""
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
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.2g} seconds"


def megabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class PlainTable(Table):
    """Shows its cells as they are: names are other people's text, not markup."""

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
