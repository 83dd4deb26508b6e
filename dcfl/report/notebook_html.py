"""How results show themselves in a notebook: small tables, with everything escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from dcfl.comparisons.groups import Group, scored_on
from dcfl.comparisons.standing import Standing
from dcfl.report.document import Table, shown
from dcfl.report.methods_table import methods_table
from dcfl.report.text import number, plural
from dcfl.runs.rows import RoundRow, Summary

WIDTH, HEIGHT = 120, 24  # of a curve, in pixels


def run_html(summary: Summary, rounds: Sequence[RoundRow], images: str, folder: Path) -> str:
    """A finished run. `images`: those that it was scored on."""
    best = summary.best_round
    whose = "global model: " if summary.personal_models else ""
    cells = {
        "clients' own models": _percent(summary.personal_accuracy),
        f"{whose}accuracy on {images}": _percent(summary.final_accuracy),
        "MAX": _percent(summary.max_accuracy),
        "EMA": _percent(summary.ema_accuracy),
        "best model": "" if best is None else f"round {best}",
        "seconds": number(summary.seconds, 1),
        "course": _curve([row.accuracy for row in rounds if row.accuracy is not None]),
    }
    title = f"{summary.method} on {summary.dataset}, {plural(summary.rounds, 'round')}"
    notes = [f"Run {summary.stopped}."] if summary.stopped else []
    known = {name: cell for name, cell in cells.items() if cell}
    return _html(title, Table.of([known]), [*notes, str(folder)])


def groups_html(groups: Sequence[Group], folder: Path | None = None, by: str = "") -> str:
    standing = Standing(groups, by)
    final = ["final", "own final"] if any(group.baseline for group in groups) else []
    names = ["label", "seeds", "MAX", "EMA", *(["gain"] if len(groups) > 1 else []), *final]
    if standing.about_own:
        names = ["label", "seeds", "own final", *(["gain"] if len(groups) > 1 else []), "final"]
    table = methods_table(standing, standing.shown, names, short=True)
    rows = [
        [*row, _curve(group.curve)] for row, group in zip(table.rows, standing.shown, strict=True)
    ]
    title = f"Accuracy on {scored_on(run for group in groups for run in group.runs)}"
    return _html(title, Table([*table.columns, "course"], rows), [str(folder)] if folder else [])


def _html(title: str, table: Table, notes: Sequence[str]) -> str:
    def line(tag: str, texts: Sequence[str]) -> Markup:
        cells = (Markup("<{0}>{1}</{0}>").format(Markup(tag), shown(text)) for text in texts)
        return Markup("<tr>{}</tr>").format(Markup("").join(cells))

    rows = Markup("").join([line("th", table.columns), *(line("td", row) for row in table.rows)])
    small = (Markup("<div><small>{}</small></div>").format(shown(note)) for note in notes)
    head, below = Markup("<div><b>{}</b></div>").format(shown(title)), Markup("").join(small)
    return Markup("<div>{}<table>{}</table>{}</div>").format(head, rows, below)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{number(value)} %"


def _curve(values: Sequence[float]) -> str:
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
