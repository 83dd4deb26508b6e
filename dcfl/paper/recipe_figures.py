"""The charts that only a reproduction has; recipe_figures.py has the pictures that they take the
place of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group
from dcfl.comparisons.standing import client_seconds_so_far
from dcfl.paper.recipe import REFERENCE
from dcfl.paper.results import Entry, Results
from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.report.plots import COLOURS, DASHES, INK, WIDTH, curve_figure, styled
from dcfl.runs.folder import RecordedRun


def client_time_figure(groups: Sequence[Group]) -> Figure:
    """The moving average against the seconds that clients have worked so far."""
    return curve_figure(groups, client_seconds_so_far, "seconds of clients' work")


@styled
def lead_figure(entries: Sequence[Entry], reference: Entry) -> Figure:
    """What each method gains over the reference, from round to round."""
    figure = Figure(figsize=(WIDTH, 0.62 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color=INK, linewidth=1)
    others = [entry for entry in entries if entry.row != reference.row]
    for index, entry in enumerate(others):
        shared = [seed for seed in entry.runs if seed in reference.runs]
        leads = [_leads(entry.runs[seed], reference.runs[seed]) for seed in shared]
        rounds = sorted(set.intersection(*map(set, leads))) if leads else []
        if rounds:
            mean = [np.mean([lead[round] for lead in leads]) for round in rounds]
            style = DASHES[index // len(COLOURS) % len(DASHES)]
            colour = COLOURS[index % len(COLOURS)]
            axes.plot(rounds, mean, linestyle=style, color=colour, label=entry.row)
    axes.set_xlabel("round")
    axes.set_ylabel("EMA against FedAvg (points)")
    figure.legend(loc="outside upper left", ncols=3, fontsize=9.5)
    return figure


def _leads(run: RecordedRun, reference: RecordedRun) -> dict[int, float]:
    """The difference of the moving averages after each round that both have scored."""
    mine, theirs = (
        {row.round: row.ema_accuracy for row in one.rounds if row.ema_accuracy is not None}
        for one in (run, reference)
    )
    return {round: value - theirs[round] for round, value in mine.items() if round in theirs}


@styled
def gain_figure(results: Results, block: str) -> Figure:
    """What each method gains over FedAvg, from column to column."""
    columns = results.columns(block)
    figure = Figure(figsize=(WIDTH, 0.62 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color=INK, linewidth=1)
    rows = [row for row in results.rows(block) if row != REFERENCE]
    for row, colour in zip(rows, COLOURS, strict=False):
        points = []
        for index, column in enumerate(columns):
            entry = results.entries.get((block, column), {}).get(row)
            pair = entry and results.against_reference((block, column), entry, "ema")
            if pair:
                differences = pair.paired.differences
                mean = pair.paired.spread.mean
                points.append((index, mean, min(differences), max(differences)))
        if points:
            x, mean, low, high = np.array(points).T
            axes.plot(x, mean, "o-", color=colour, label=row)
            axes.vlines(x, low, high, color=colour, alpha=0.35, linewidth=4)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_xlabel(results.recipe.columns)
    axes.set_ylabel("EMA against FedAvg (points)")
    figure.legend(loc="outside upper left", ncols=3, fontsize=9.5)
    return figure


@styled
def weights_figure(results: Results, block: str) -> Figure:
    """Gains over FedAvg by row and column, as colours and numbers."""
    columns = results.columns(block)
    rows = [row for row in results.rows(block) if row != REFERENCE]
    gains = gains_over_reference(results, block)
    figure = Figure(figsize=(WIDTH, 1.2 + 0.5 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False)
    widest = max(float(np.nanmax(np.abs(gains), initial=0.0)), 0.5)
    norm = TwoSlopeNorm(0.0, -widest, widest)
    axes.imshow(gains, cmap="RdBu", norm=norm, aspect="auto")
    for (down, across), gain in np.ndenumerate(gains):
        if np.isfinite(gain):
            pale = abs(gain) < 0.6 * widest
            axes.text(
                across, down, f"{gain:+.1f}", ha="center", va="center", color=INK if pale else "w"
            )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(results.recipe.columns)
    return figure


def gains_over_reference(results: Results, block: str) -> NDArray[np.float64]:
    """Points of EMA over FedAvg, by row and column; NaN where there is nothing to compare."""
    columns = results.columns(block)
    rows = [row for row in results.rows(block) if row != REFERENCE]
    gains = np.full((len(rows), len(columns)), np.nan)
    for across, column in enumerate(columns):
        for down, row in enumerate(rows):
            entry = results.entries.get((block, column), {}).get(row)
            pair = entry and results.against_reference((block, column), entry, "ema")
            if pair:
                gains[down, across] = pair.paired.spread.mean
    return gains


def gain_chart(results: Results, block: str) -> Chart:
    """What each method gains over FedAvg, from column to column."""
    columns = results.columns(block)
    rows = [row for row in results.rows(block) if row != REFERENCE]
    gains = gains_over_reference(results, block)
    lines = [series(row, range(len(columns)), gains[at], colour=at) for at, row in enumerate(rows)]
    names = {"names": columns, "low": -0.3, "high": len(columns) - 0.7}
    return charts.plot(
        {"label": results.recipe.columns, **names},
        {"label": "EMA against FedAvg (points)"},
        [{"series": lines}],
    )


def weights_chart(results: Results, block: str) -> Chart | None:
    """Gains over FedAvg by row and column, as colours and numbers."""
    rows = [row for row in results.rows(block) if row != REFERENCE]
    columns = (results.recipe.columns, results.columns(block))
    gains = gains_over_reference(results, block)
    return charts.matrix(gains, ("method", rows), columns, "EMA, points", "signed", digits=1)
