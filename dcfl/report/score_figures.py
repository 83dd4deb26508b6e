"""The figures of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from dcfl.report.plots import COLOURS, INK, LONGEST_CLASS, MANY_DOWN, WIDTH, styled, thinned
from dcfl.report.text import number
from dcfl.runs.evaluations import ClassRow, ClientScore
from dcfl.scores import CONFIDENCE_BINS, Scores
from dcfl.system.printable import printable

NUMBERED_CLASSES = 12  # more leave no room for a number in each cell
MANY_TURNED = 8  # class names along an axis that still need not be turned
RECALL, PRECISION = COLOURS[5], COLOURS[1]
PALE = "#b9c0c6"
EMPTY = "#eceef0"


@styled
def confusion_figure(scores: Scores, class_names: Sequence[str]) -> Figure:
    """A row per class: how its images were answered."""
    counts: NDArray[np.float64] = scores.confusion.numpy()
    totals = counts.sum(axis=1, keepdims=True)
    absent = np.broadcast_to(totals == 0, counts.shape)
    shares = counts / np.where(totals > 0, totals, 1)
    side = min(max(0.3 * len(counts), 3.2), WIDTH - 0.6)
    figure = Figure(figsize=(WIDTH, side + 0.8), layout="constrained")
    axes = figure.add_subplot()
    shades = mpl.colormaps["Blues"].with_extremes(bad=EMPTY)
    image = axes.imshow(
        np.ma.masked_array(shares, absent), shades, vmin=0, vmax=1, interpolation="none"
    )
    if len(counts) <= NUMBERED_CLASSES:
        _write_counts(axes, counts, shares)
    _name_classes(axes, class_names)
    axes.set_xlabel("answer")
    axes.set_ylabel("class")
    axes.grid(visible=False)
    axes.spines[["top", "right"]].set_visible(True)
    figure.colorbar(image, label="share of the class", shrink=0.8, format=PercentFormatter(1.0, 0))
    return figure


def _write_counts(axes: Axes, counts: NDArray[np.float64], shares: NDArray[np.float64]) -> None:
    for row, column in np.argwhere(counts > 0):
        dark = shares[row, column] > 0.55
        text = number(counts[row, column], 0)
        colour = "white" if dark else INK
        axes.text(column, row, text, color=colour, fontsize=8, ha="center", va="center")


def _name_classes(axes: Axes, class_names: Sequence[str]) -> None:
    places = thinned(len(class_names), MANY_DOWN)
    names = [printable(class_names[place], LONGEST_CLASS) for place in places]
    turned = len(names) > MANY_TURNED and max(map(len, names)) > 2
    axes.set_xticks(places, names, rotation=90 if turned else 0)
    axes.set_yticks(places, names)
    axes.tick_params(length=2)


@styled
def reliability_figure(scores: Scores) -> Figure:
    """Accuracy against confidence, and below how many images have which confidence."""
    figure = Figure(figsize=(WIDTH, 0.85 * WIDTH), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    edges = np.linspace(0, 100, CONFIDENCE_BINS + 1)
    confidence, accuracy = (values.numpy() for values in scores.reliability)
    upper.stairs(np.nan_to_num(accuracy), edges, fill=True, color=COLOURS[5], alpha=0.55)
    upper.plot([0, 100], [0, 100], color=INK, linewidth=1, linestyle="--")
    upper.plot(confidence, accuracy, "o", color=COLOURS[0], markersize=4.5, clip_on=False)
    upper.set_ylim(0, 100)
    upper.set_ylabel("right answers (%)")
    images = scores.confidence[0].numpy()
    lower.stairs(100 * images / max(images.sum(), 1e-9), edges, fill=True, color=PALE)
    lower.set_xlim(0, 100)
    lower.set_ylim(bottom=0)
    lower.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    lower.set_ylabel("images (%)")
    lower.set_xlabel("confidence: the probability of the answer (%)")
    figure.align_ylabels([upper, lower])
    return figure


@styled
def class_figure(rows: Sequence[ClassRow]) -> Figure:
    """Recall as bars, precision as dots, in the order of the rows from the top."""
    figure = Figure(figsize=(WIDTH, 0.9 + 0.24 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(rows))
    axes.barh(places, [row.recall for row in rows], color=RECALL, alpha=0.55)
    precision = [row.precision for row in rows]
    axes.plot(precision, places, "D", color=PRECISION, markersize=4, clip_on=False)
    axes.set_yticks(places, [printable(row.name, LONGEST_CLASS) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("%")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D([], [], color=RECALL, linewidth=6, alpha=0.55),
        Line2D([], [], color=PRECISION, linestyle="", marker="D", markersize=4),
    ]
    figure.legend(handles, ["recall", "precision"], loc="outside upper left", ncols=2)
    return figure


@styled
def clients_figure(clients: Sequence[ClientScore], mean: float) -> Figure:
    """Each client's accuracy, the worst first."""
    figure = Figure(figsize=(WIDTH, 0.5 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    accuracies = sorted(client.accuracy for client in clients)
    places = range(1, len(accuracies) + 1)
    axes.plot(places, accuracies, "o", color=COLOURS[0], markersize=4, clip_on=False)
    axes.axhline(mean, color=INK, linewidth=1, linestyle="--")
    axes.set_xlim(0.5, len(accuracies) + 0.5)
    axes.set_ylim(0, 100)
    axes.set_xlabel("clients, the worst first")
    axes.set_ylabel("right answers (%)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.grid(visible=False, axis="x")
    return figure
