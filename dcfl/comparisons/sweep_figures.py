"""The pictures of a sweep: scores over one, two or more keys, and the curves of the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from dcfl.comparisons.space import Choices, Dimension, Range, plain
from dcfl.comparisons.trials import By, Trial
from dcfl.report.plots import COLOURS, DASHES, GRID, INK, LONGEST_CLASS, WIDTH, styled
from dcfl.system.wording import printable

SHADES = mpl.colormaps["viridis"]
SCORE = "kept-back accuracy (%)"
NAMED_CURVES = 5  # the best; the others are grey
LONGEST_KEY = 24


def scores_figure(dimensions: Sequence[Dimension], trials: Sequence[Trial], by: By) -> Figure:
    """Of finished trials."""
    if len(dimensions) == 1:
        return _line(dimensions[0], trials, by)
    if lists := two_lists(dimensions):
        return _heat_map(*lists, trials, by)
    return _parallel_coordinates(dimensions, trials, by)


def two_lists(dimensions: Sequence[Dimension]) -> tuple[Choices, Choices] | None:
    """The sweeps that a table shows."""
    if len(dimensions) != 2:
        return None
    down, across = dimensions
    return (down, across) if isinstance(down, Choices) and isinstance(across, Choices) else None


@styled
def _line(dimension: Dimension, trials: Sequence[Trial], by: By) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.55 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    places = places_of(dimension, trials)
    for place, trial in zip(places, trials, strict=True):
        values = trial.scores(by)
        axes.plot([place] * len(values), values, "o", color=COLOURS[0], alpha=0.35, markersize=4)
    ordered = sorted(zip(places, [trial.score(by) for trial in trials], strict=True))
    axes.plot(*np.array(ordered).T, "-o", color=COLOURS[0], markersize=6)
    _label_axis(axes, dimension)
    axes.set_xlabel(printable(dimension.key, LONGEST_KEY))
    axes.set_ylabel(SCORE)
    return figure


@styled
def _heat_map(down: Choices, across: Choices, trials: Sequence[Trial], by: By) -> Figure:
    table = score_table(down, across, trials, by)
    height = min(max(0.36 * len(down.values) + 1.2, 2.4), 6.0)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False)
    shades = SHADES.with_extremes(bad="#f0f0f0")
    image = axes.imshow(np.ma.masked_invalid(table), cmap=shades, aspect="auto")
    figure.colorbar(image, ax=axes, label="accuracy (%)", ticks=MaxNLocator(5))
    for set_ticks, dimension in ((axes.set_yticks, down), (axes.set_xticks, across)):
        set_ticks(range(len(dimension.values)), _labels(dimension.values))
    axes.set_ylabel(printable(down.key, LONGEST_KEY))
    axes.set_xlabel(printable(across.key, LONGEST_KEY))
    if table.size <= 60:
        _write_values(axes, table)
    return figure


def score_table(
    down: Choices, across: Choices, trials: Sequence[Trial], by: By
) -> NDArray[np.float64]:
    """NaN where no trial has finished."""
    table = np.full((len(down.values), len(across.values)), np.nan)
    for trial in trials:
        row = down.values.index(trial.point[down.key])
        table[row, across.values.index(trial.point[across.key])] = trial.score(by)
    return table


def _write_values(axes: Axes, table: NDArray[np.float64]) -> None:
    known = table[~np.isnan(table)]
    middle = (known.min() + known.max()) / 2
    for (row, column), value in np.ndenumerate(table):
        if not math.isnan(value):
            colour = "black" if value > middle else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)


@styled
def _parallel_coordinates(
    dimensions: Sequence[Dimension], trials: Sequence[Trial], by: By
) -> Figure:
    """An axis per key and one for the score; a line per trial, the best ones dark and on top."""
    figure = Figure(figsize=(WIDTH, 0.7 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    scores = [trial.score(by) for trial in trials]
    low, high = min(scores), max(scores)
    norm = Normalize(low, high if high > low else low + 1)
    heights = [shares_of(one, [trial.point[one.key] for trial in trials]) for one in dimensions]
    heights.append([float(norm(score)) for score in scores])
    for index in np.argsort(scores):
        line = [column[index] for column in heights]
        colour, width = SHADES(1 - norm(scores[index])), 2.2 if scores[index] == high else 1.1
        axes.plot(range(len(line)), line, color=colour, linewidth=width, alpha=0.85)
    for place, dimension in enumerate(dimensions):
        _draw_scale(axes, place, _ends(dimension))
    _draw_scale(axes, len(dimensions), {0.0: f"{low:.1f}", 1.0: f"{norm.vmax:.1f}"})
    names = [printable(one.key, LONGEST_KEY).replace(".", ".\n") for one in dimensions]
    axes.set_xticks(range(len(names) + 1), [*names, "kept-back\naccuracy (%)"])
    axes.tick_params(length=0)
    axes.set_yticks([])
    axes.set_xlim(-0.25, len(names) + 0.35)
    return figure


def _draw_scale(axes: Axes, place: int, labels: dict[float, str]) -> None:
    axes.axvline(place, color=INK, linewidth=0.8, zorder=0)
    for height, label in labels.items():
        axes.annotate(
            printable(label, LONGEST_CLASS), (place, height), (3, 0), textcoords="offset points",
            fontsize=8.5, va="center", zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )  # fmt: skip


def shares_of(dimension: Dimension, values: Sequence[Any]) -> list[float]:
    """Where values lie on an axis from 0 to 1."""
    if isinstance(dimension, Choices):
        last = max(len(dimension.values) - 1, 1)
        return [dimension.values.index(value) / last for value in values]
    scale = math.log if dimension.log else float
    low, high = scale(dimension.low), scale(dimension.high)
    return [(scale(value) - low) / (high - low) for value in values]


def _ends(dimension: Dimension) -> dict[float, str]:
    if isinstance(dimension, Choices):
        shares = shares_of(dimension, dimension.values)
        return dict(zip(shares, _labels(dimension.values), strict=True))
    return {0.0: plain(dimension.low), 1.0: plain(dimension.high)}


def places_of(dimension: Dimension, trials: Sequence[Trial]) -> list[float]:
    values = [trial.point[dimension.key] for trial in trials]
    if isinstance(dimension, Choices):
        return [float(dimension.values.index(value)) for value in values]
    return [float(value) for value in values]


def _label_axis(axes: Axes, dimension: Dimension) -> None:
    if isinstance(dimension, Choices):
        axes.set_xticks(range(len(dimension.values)), _labels(dimension.values))
    elif isinstance(dimension, Range) and dimension.log:
        axes.set_xscale("log")


def _labels(values: Sequence[Any]) -> list[str]:
    return [printable(plain(value), LONGEST_CLASS) for value in values]


@styled
def curves_figure(ranked: Sequence[Trial], labels: Sequence[str]) -> Figure:
    """The moving average of each trial's first seed: the best in colour, the others grey."""
    figure = Figure(figsize=(WIDTH, 0.62 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    for rank in reversed(range(len(ranked))):
        run = ranked[rank].cells[0].run
        rows = run.rounds if run else []
        points = [(row.round, row.ema_accuracy) for row in rows if row.accuracy is not None]
        named = rank < NAMED_CURVES
        axes.plot(
            *np.array(points).reshape(-1, 2).T,
            color=COLOURS[rank % len(COLOURS)] if named else "#b8bec4",
            linestyle=DASHES[0],
            linewidth=2.0 if named else 1.0,
            zorder=3 if named else 2,
            marker="o" if len(points) == 1 else "",
            label=printable(labels[rank], 48) if named else None,
        )
    axes.set_xlabel("round")
    axes.set_ylabel("kept-back accuracy, EMA (%)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    handles, names = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1], names[::-1], loc="outside upper left", fontsize=9, ncols=1, edgecolor=GRID
    )
    figure.set_figheight(figure.get_figheight() + 0.2 * len(names))
    return figure
