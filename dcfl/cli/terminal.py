"""What a person sees while waiting, and afterwards: progress, tables, small pictures."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from dcfl.config import to_toml
from dcfl.data.overview import MANY_CLIENTS, PERCENTILES, Overview
from dcfl.runs.groups import Group
from dcfl.runs.rows import RoundRow, Summary
from dcfl.system.printable import printable

# Without markup: a class may be called [/red].
stdout = Console(highlight=False, markup=False, emoji=False)
if not stdout.is_terminal:  # nothing is cut off in a file or a pipe
    stdout = Console(highlight=False, markup=False, emoji=False, width=160)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)

BARS = "▁▂▃▄▅▆▇█"
LONGEST_NAME = 60  # characters of a name in a table or a list


class ShowRound(Protocol):
    def __call__(self, row: RoundRow) -> None: ...


def sparkline(values: Sequence[float], width: int = 20) -> str:
    """The curve in one line of text, from its lowest to its highest value."""
    if not values:
        return ""
    width = min(width, len(values))
    # The last point of each slice, so that the line ends where the curve ends.
    points = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    low, high = min(points), max(points)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((point - low) * scale)] for point in points)


def run_result(summary: Summary, rounds: Sequence[RoundRow], engine: str, folder: Path) -> str:
    """What `dcfl run` says at the end."""
    lost = f", {summary.lost} replies lost" if summary.lost else ""
    lines = (
        f"{summary.method} on {summary.dataset}: accuracy {summary.final_accuracy:.2f} %, "
        f"MAX {summary.max_accuracy:.2f}, EMA {summary.ema_accuracy:.2f}, "
        f"{summary.seconds:.1f} s{lost}",
        sparkline([row.accuracy for row in rounds if row.accuracy is not None], 40),
        f"engine  {engine}",
        f"weights {summary.weights_sha256[:16]}",
        f"report  {folder / 'report.html'}",
    )
    return "\n".join(map(printable, lines))


@contextmanager
def progress(label: str, rounds: int) -> Iterator[ShowRound]:
    """Show each round as it ends: a live bar on a terminal, about ten plain lines elsewhere."""
    label = printable(label, LONGEST_NAME)
    if stderr.is_terminal:
        with _live_bar(label, rounds) as show:
            yield show
    else:
        yield _plain_lines(label, rounds)


@contextmanager
def _live_bar(label: str, rounds: int) -> Iterator[ShowRound]:
    columns = (
        _plain("{task.description}"),
        BarColumn(bar_width=24),
        _plain("round {task.completed}/{task.total}"),
        _plain("{task.fields[status]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=stderr) as bar:
        task = bar.add_task(label, total=rounds, status="")
        status = _Status(rounds)

        def show(row: RoundRow) -> None:
            _warn_of(row)
            bar.update(task, completed=row.round, status=status.after(row)[0])

        yield show


def _plain(text: str) -> TextColumn:
    return TextColumn(text, markup=False)


def _plain_lines(label: str, rounds: int) -> ShowRound:
    status = _Status(rounds)
    every = max(1, rounds // 10)

    def show(row: RoundRow) -> None:
        _warn_of(row)
        text, left = status.after(row)
        if row.round % every == 0 or row.round in (1, rounds):
            line = f"{label}  round {row.round}/{rounds}  {text}  {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    return show


def _warn_of(row: RoundRow) -> None:
    for notice in row.notices:
        stderr.print(printable(f"dcfl: warning: {notice}"), soft_wrap=True)


class _Status:
    """Accuracy, speed and the time left, from the rounds seen so far."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.began = rounds, time.perf_counter()
        self.first: int | None = None
        self.clients = 0

    def after(self, row: RoundRow) -> tuple[str, float]:
        self.first = row.round - 1 if self.first is None else self.first
        self.clients += row.sampled
        elapsed = max(time.perf_counter() - self.began, 1e-9)
        left = elapsed / (row.round - self.first) * (self.rounds - row.round)
        lost = row.sampled - row.ok
        text = f"accuracy {row.accuracy:.1f} %  {self.clients / elapsed:.0f} clients/s"
        text += f"  {lost} clients lost" if lost else ""
        return text + ("" if row.used else "  the model stays as it was"), left


@contextmanager
def download_progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show bytes as they arrive: a bar on a terminal, a line every ten percent elsewhere."""
    label = printable(label, LONGEST_NAME)
    if stderr.is_terminal:
        columns = (
            _plain("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=stderr) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        shown = [-1]

        def show(done: int, total: int | None) -> None:
            tenth = 10 * done // total if total else done // 50_000_000
            if tenth != shown[0]:
                shown[0] = tenth
                of = f" of {total / 1e6:.0f}" if total else ""
                print(f"{label}  {done / 1e6:.0f}{of} MB", file=sys.stderr, flush=True)

        yield show


def dataset_card(found: dict[str, Any]) -> str:
    """What `dcfl data check` says about a data set."""
    names = found["class_names"]
    lines = {
        "data set": found["dataset"],
        "images": f"{found['train']:,} to train on, {found['test']:,} to test on",
        "size": f"{found['size']} x {found['size']} pixels, {found['channels']} channels",
        "classes": f"{len(names)}: {_first(names)}",
        "balance": f"{found['smallest_class']:,} to {found['largest_class']:,} training images of "
        "a class",
    }
    if sites := found.get("sites"):
        sizes = sites.values()
        lines["sites"] = f"{len(sites)} of {min(sizes):,} to {max(sizes):,} images: {_first(sites)}"
    if found.get("official"):
        lines["checksums"] = "the official ones"
    return "\n".join(printable(f"{word:10} {text}") for word, text in lines.items())


def _first(names: Collection[str], most: int = 10) -> str:
    first = [printable(name, LONGEST_NAME) for name in list(names)[:most]]
    return ", ".join(first) + (", ..." if len(names) > most else "")


def comparison_table(groups: Sequence[Group], own_mixes: bool = False) -> Table:
    """A row per method; differences are to the first one's EMA, seed by seed. With `own_mixes`, all
    of the accuracy on the clients' own mixes of classes."""
    first = groups[0]
    quantity = "client_accuracy" if own_mixes else "accuracy"
    titles = ["on the clients' own mixes of classes"] if own_mixes else []
    titles += [f"{first.seeds} seeds, mean ± deviation"] if first.seeds > 1 else []
    title = ", ".join(titles) or None
    width = 20 if first.seeds == 1 else 8
    against = f"vs {first.label}"
    made = table("method", "MAX %", "EMA %", against, "MB", "seconds", "accuracy", title=title)
    for group in groups:
        gain = None if group is first else group.difference(first, f"ema_{quantity}")
        sent = group.spread("bytes_up").mean + group.spread("bytes_down").mean
        made.add_row(
            group.label,
            f"{group.spread(f'max_{quantity}')}",
            f"{group.spread(f'ema_{quantity}')}",
            f"{gain:+}" if gain else "",
            f"{sent / 1e6:.0f}",
            f"{group.spread('seconds').mean:.1f}",
            sparkline(group.curve, width),
        )
    return made


def partition_table(
    counts: NDArray[np.int64], class_names: Sequence[str], site_names: Sequence[str] = ()
) -> Table:
    """A row per client: its size, classes and largest share, then its classes as numbers (up to 16
    classes) or as a line of bars. Of many clients the percentiles, column by column, and the
    smallest and the largest."""
    named = len(class_names) <= 16
    room = (stdout.width - 34) // max(len(class_names), 1) - 1  # beside the first four columns
    mixes = [printable(name, max(room, 4)) for name in class_names] if named else ["mix"]
    split = Overview(counts)
    many = len(counts) > MANY_CLIENTS
    title = None
    if many:
        title = f"{len(counts):,} clients: percentiles of each column, the smallest and the largest"
    made = table(
        *("clients" if many else "client", "samples", "classes", "largest"),
        *mixes,
        title=title,
        gap=1,
    )
    top = max(int(counts.max()), 1)

    def add(name: str, size: int, held: int, share: float, row: NDArray[np.int64]) -> None:
        cells = [_shaded(int(count), top) for count in row] if named else [_mix(row, top)]
        made.add_row(name, str(size), str(held), f"{share:.0%}", *cells)

    if many:
        columns = (split.sizes, split.held, split.largest_shares, counts)
        found = [np.percentile(c, PERCENTILES, axis=0, method="lower") for c in columns]
        for percent, *values in zip(PERCENTILES, *found, strict=True):
            add(f"{percent} %", *values)
    for client in (split.smallest, split.largest) if many else range(len(counts)):
        name = site_names[client] if site_names else f"{'client ' if many else ''}{client}"
        add(
            name,
            split.sizes[client],
            split.held[client],
            split.largest_shares[client],
            counts[client],
        )
    return made


def _shaded(count: int, top: int) -> Text:
    """The number on a background that is the darker the larger it is; a dot for none."""
    if not count:
        return Text("·", style="dim")
    level = count / top
    blue = f"rgb({int(235 - 200 * level)},{int(242 - 160 * level)},{int(250 - 80 * level)})"
    return Text(f"{count:3}", style=f"{'white' if level > 0.5 else 'black'} on {blue}")


def _mix(row: NDArray[np.int64], top: int) -> str:
    """All classes in at most 45 characters; neighbours share one where there are more."""
    groups = np.array_split(row, min(len(row), 45))
    return "".join("·" if not g.any() else BARS[int(g.max() * 7 // top)] for g in groups)


def method_card(description: dict[str, Any]) -> str:
    """What `dcfl methods` says about one method."""
    cost = description["cost"]
    costs = [
        f"{cost['forwards']} forward and {cost['backwards']} backward per step",
        *([f"{cost['copies']} more copies of the model"] if cost["copies"] else []),
        *([f"{cost['passes']} pass over the local data per round"] if cost["passes"] else []),
        *([f"bytes kept by a client: {cost['kept']}"] if cost["kept"] != "0" else []),
    ]
    sent = [
        f"bytes {way}: " + " + ".join(part for part in ("weights", cost[way]) if part != "0")
        for way in ("up", "down")
    ]
    published = [
        f"{key} = {value:g} on {dataset}"
        for dataset, values in description["published"].items()
        for key, value in values.items()
    ]
    lines = [
        ("what", description["idea"]),
        ("loss", description["equation"]),
        ("cost", ", ".join(costs)),
        ("sends", ", ".join(sent)),
        *((("paper", ", ".join([*published, "the default there"])),) if published else ()),
        *(
            ("field", f"{field['name']} = {to_toml(field['default'])}  ({field['type']})")
            for field in description["fields"]
        ),
    ]
    width = stdout.width if stdout.is_terminal else 10_000
    filled = [
        textwrap.fill(text, width, initial_indent=f"  {word:7}", subsequent_indent=" " * 9)
        for word, text in lines
    ]
    return "\n".join([description["name"], *filled])


class PlainTable(Table):
    """Its cells are shown as they are: names are other people's text, not markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        plain = (_cell(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, **options)


def _cell(text: str) -> Text:
    return Text(printable(text, LONGEST_NAME))


def table(*columns: str, title: str | None = None, gap: int = 2) -> Table:
    """A table whose first column is text and whose other columns are numbers."""
    made = PlainTable(
        title=title, title_justify="left", box=None, pad_edge=False, padding=(0, gap, 0, 0)
    )
    for position, column in enumerate(columns):
        made.add_column(_cell(column), justify="left" if position == 0 else "right", no_wrap=True)
    return made
