"""Where a comparison goes: the terminal, JSON, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from dcfl.cli.terminal import BARS, new_table, sparkline, stdout
from dcfl.comparisons.groups import Group
from dcfl.comparisons.standing import Standing
from dcfl.data.dataset_summary import MANY_CLIENTS, PERCENTILES, Overview
from dcfl.report.text import wins_ties_losses
from dcfl.system.wording import printable

if TYPE_CHECKING:
    from dcfl.comparisons.standing import Standing
    from dcfl.report import document


MOST_NUMBERED_CLASSES = 16  # more are drawn as a line of bars
ROOMY = 90  # columns of a terminal
WIDEST_MIX = 45  # characters of that line
FIRST_COLUMNS_WIDTH = 34  # of a partition table


def comparison_table(standing: Standing) -> Table:
    """A row per method. Differences are to the first method's EMA, seed by seed."""
    first = standing.groups[0]
    titles = ["on the clients' own mixes of classes"] if standing.own_mixes else []
    titles += ["on kept-back images"] if first.runs[0].holdout else []
    titles += [f"{first.seeds} seeds, mean ± deviation"] if first.seeds > 1 else []
    own = ["personal %"] if any(group.has_personal for group in standing.groups) else []
    columns = ["MAX %", "EMA %", f"vs {first.method}", "w/t/l", "worst %", *own, "MB", "s"]
    width = _curve_width(first.seeds)
    shown = [*columns, "curve"] if width else columns
    table = new_table("method", *shown, title=", ".join(titles) or None)
    for group in standing.groups:
        gain = standing.gain(group)
        paired = gain.paired if gain else None
        sent = group.spread("bytes_up").mean + group.spread("bytes_down").mean
        table.add_row(
            group.label,
            f"{group.spread(f'max_{standing.accuracy}')}",
            f"{group.spread(standing.quantity)}",
            f"{paired.spread:+}" if paired else "",
            wins_ties_losses(paired) if paired else "",
            f"{group.spread('worst_decile_accuracy').mean:.1f}",
            *([_personal(group)] if own else []),
            f"{sent / 1e6:.0f}",
            f"{group.spread('seconds').mean:.0f}",
            *([sparkline(group.curve, width)] if width else []),
        )
    return table


def _personal(group: Group) -> str:
    """The accuracy of the clients' own models."""
    return f"{group.spread('personal_accuracy')}" if group.has_personal else ""


def _curve_width(seeds: int) -> int:
    """Where there is no room for deviations and a curve, numbers are worth more."""
    if stdout.width < ROOMY:
        return 8 if seeds == 1 else 0
    return 20 if seeds == 1 else 8


def plain_table(table: document.Table) -> Table:
    """A table of a page, for the terminal."""
    shown = new_table(*table.columns, title=table.title or None)
    for row in table.rows:
        shown.add_row(*row)
    return shown


class PartitionRow(NamedTuple):
    """One client, or one percentile over all clients, column by column."""

    name: str
    size: int
    classes: int
    largest_share: float
    counts: NDArray[np.int64]  # per class


def partition_table(
    counts: NDArray[np.int64], class_names: Sequence[str], site_names: Sequence[str] = ()
) -> Table:
    """A row per client: its size, its classes and their largest share, then its samples per class,
    as numbers or, for many classes, as a line of bars.

    Many clients are summed up: percentiles of each column, then the smallest and the largest.
    """
    room = (stdout.width - FIRST_COLUMNS_WIDTH) // max(len(class_names), 1) - 1
    numbered = len(class_names) <= MOST_NUMBERED_CLASSES and room >= len(str(counts.max()))
    mixes = [printable(name, max(room, 4)) for name in class_names] if numbered else ["mix"]
    many = len(counts) > MANY_CLIENTS
    title = None
    if many:
        title = f"{len(counts):,} clients: percentiles of each column, the smallest and the largest"
    columns = ("clients" if many else "client", "samples", "classes", "largest")
    table = new_table(*columns, *mixes, title=title, gap=1)
    top = max(int(counts.max()), 1)
    overview = Overview(counts)
    for row in _summed_up(overview, site_names) if many else _every_client(overview, site_names):
        cells = [_shaded(int(c), top) for c in row.counts] if numbered else [_mix(row.counts, top)]
        table.add_row(row.name, str(row.size), str(row.classes), f"{row.largest_share:.0%}", *cells)
    return table


def _every_client(overview: Overview, site_names: Sequence[str]) -> Iterator[PartitionRow]:
    for client in range(len(overview.counts)):
        yield _client_row(overview, client, site_names[client] if site_names else f"{client}")


def _summed_up(overview: Overview, site_names: Sequence[str]) -> Iterator[PartitionRow]:
    columns = (overview.sizes, overview.held, overview.largest_shares, overview.counts)
    percentiles = [np.percentile(c, PERCENTILES, axis=0, method="lower") for c in columns]
    for percent, *values in zip(PERCENTILES, *percentiles, strict=True):
        yield PartitionRow(f"{percent} %", *values)
    for client in (overview.smallest, overview.largest):
        name = site_names[client] if site_names else f"client {client}"
        yield _client_row(overview, client, name)


def _client_row(overview: Overview, client: int, name: str) -> PartitionRow:
    return PartitionRow(
        name,
        overview.sizes[client],
        overview.held[client],
        overview.largest_shares[client],
        overview.counts[client],
    )


def _shaded(count: int, top: int) -> Text:
    """The number on a background that darkens with its size; a dot for none."""
    if not count:
        return Text("·", style="dim")
    level = count / top
    blue = f"rgb({int(235 - 200 * level)},{int(242 - 160 * level)},{int(250 - 80 * level)})"
    return Text(f"{count:3}", style=f"{'white' if level > 0.5 else 'black'} on {blue}")


def _mix(counts: NDArray[np.int64], top: int) -> str:
    """All classes in at most WIDEST_MIX characters; neighbours share one where there are more."""
    groups = np.array_split(counts, min(len(counts), WIDEST_MIX))
    return "".join("·" if not g.any() else BARS[int(g.max() * 7 // top)] for g in groups)
