"""How results show themselves in a notebook: small tables, with everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup, escape

from dcfl.comparisons.groups import Group, scored_on
from dcfl.comparisons.standing import Standing
from dcfl.report.methods_table import methods_table
from dcfl.report.text import number, plural
from dcfl.runs.rows import RoundRow, Summary
from dcfl.system.wording import printable

WIDTH, HEIGHT = 120, 24  # of a curve, in pixels


def run_html(summary: Summary, rounds: Sequence[RoundRow], images: str, folder: Path) -> str:
    """A finished run. `images`: those that it was scored on."""
    ended = [f"Run {summary.stopped}."] if summary.stopped else []
    best = f"round {summary.best_round}" if summary.best_round is not None else ""
    cells = {
        f"accuracy on {images}": _percent(summary.final_accuracy),
        "MAX": _percent(summary.max_accuracy),
        "EMA": _percent(summary.ema_accuracy),
        "best model": best,
        "seconds": number(summary.seconds, 1),
        "course": _curve([row.accuracy for row in rounds if row.accuracy is not None]),
    }
    title = f"{summary.method} on {summary.dataset}, {plural(summary.rounds, 'round')}"
    return _table(
        title,
        [name for name, cell in cells.items() if cell],
        [[_cell(cell) for cell in cells.values() if cell]],
        [*ended, str(folder)],
    )


def groups_html(groups: Sequence[Group], folder: Path | None = None, by: str = "") -> str:
    """A row per method."""
    standing = Standing(groups, by)
    final = ["final", "own final"] if any(group.baseline for group in groups) else []
    gain = ["gain"] if len(groups) > 1 else []
    names = ["label", "seeds", "MAX", "EMA", *gain, *final]
    if standing.about_own:
        names = ["label", "seeds", "own final", *gain, "final"]
    groups = standing.shown
    table = methods_table(standing, groups, names, short=True)
    return _table(
        f"Accuracy on {scored_on(run for group in groups for run in group.runs)}",
        [*table.columns, "course"],
        [
            [*map(_cell, row), _cell(_curve(group.curve))]
            for row, group in zip(table.rows, groups, strict=True)
        ],
        [str(folder)] if folder else [],
    )


def _cell(text: str) -> Markup:
    return escape(text if isinstance(text, Markup) else printable(text))


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    head = "".join(f"<th>{_cell(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    caption = f"<div><b>{_cell(title)}</b></div>"
    below = "".join(f"<div><small>{_cell(note)}</small></div>" for note in notes)
    return f"<div>{caption}<table><tr>{head}</tr>{body}</table>{below}</div>"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{number(value)} %"


def _curve(values: Sequence[float]) -> str:
    """A line from the lowest to the highest value."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    scale = (HEIGHT - 2) / (high - low) if high > low else 0.0
    step = WIDTH / (len(values) - 1)
    points = " ".join(
        f"{place * step:.1f},{HEIGHT - 1 - (value - low) * scale:.1f}"
        for place, value in enumerate(values)
    )
    return Markup(
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="the course of the '
        f'accuracy"><polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )
