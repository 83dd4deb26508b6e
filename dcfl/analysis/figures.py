"""The figures about one or several analysed runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from dcfl.analysis.drift import Drift
from dcfl.analysis.findings import Analysis
from dcfl.analysis.similarity import BINS
from dcfl.report.plots import COLOURS, INK, LONGEST_LABEL, WIDTH, styled
from dcfl.report.text import number
from dcfl.system.wording import printable

NAMED = 10  # classes with a colour of their own; the eye does not tell more apart
SAME, OTHER = COLOURS[0], COLOURS[1]  # pairs of the same class, of different classes
EDGES = np.linspace(-1, 1, BINS + 1)


@styled
def separation_figure(analyses: Sequence[Analysis]) -> Figure:
    """A panel per run: both histograms on one axis."""
    count = len(analyses)
    height = 2.6 if count > 1 else 3.0
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0]
    top = max(cosines.density.max() for analysis in analyses for _, cosines in analysis.kinds)
    for axes, analysis in zip(panels, analyses, strict=True):
        for (_, cosines), colour in zip(analysis.kinds, (SAME, OTHER), strict=True):
            axes.stairs(cosines.density, EDGES, fill=True, color=colour, alpha=0.35)
            axes.stairs(cosines.density, EDGES, color=colour, linewidth=1.2)
        _title(axes, f"{analysis.label}\noverlap {number(100 * analysis.similarity.overlap, 1)} %")
        axes.set_xlim(*cosine_range(analyses))
        axes.set_ylim(0, 1.05 * top or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(2 if len(analyses) > 2 else 5))
        axes.set_xlabel("cosine")
    panels[0].set_ylabel("density")
    handles = [Line2D([], [], color=colour, linewidth=5, alpha=0.6) for colour in (SAME, OTHER)]
    figure.legend(handles, ["same class", "different classes"], loc="outside upper left", ncols=2)
    return figure


@styled
def paper_figure(analyses: Sequence[Analysis]) -> Figure:
    """The layout of the paper: a column per run, same-class pairs above, the others below."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panels = figure.subplots(2, len(analyses), sharex=True, sharey="row", squeeze=False)
    for row, (colour, pairs) in enumerate([(SAME, "same class"), (OTHER, "different classes")]):
        for axes, analysis in zip(panels[row], analyses, strict=True):
            _, cosines = analysis.kinds[row]
            axes.stairs(cosines.density, EDGES, fill=True, color=colour, alpha=0.75)
            if cosines.pairs:
                axes.axvline(cosines.mean, color=INK, linewidth=1)
            axes.set_xlim(*cosine_range(analyses))
            axes.xaxis.set_major_locator(MaxNLocator(2 if len(analyses) > 2 else 5))
            _title(axes, f"{analysis.label}, {pairs}" if len(analyses) == 1 else analysis.label)
        highest = max(analysis.kinds[row][1].density.max() for analysis in analyses)
        panels[row][0].set_ylim(0, 1.05 * highest or 1.0)
        panels[row][0].set_ylabel(pairs)
    for axes in panels[1]:
        axes.set_xlabel("cosine")
    return figure


def cosine_range(analyses: Sequence[Analysis]) -> tuple[float, float]:
    """[-1, 1], or [0, 1] where nothing is negative: after a ReLU."""
    negative = any(
        cosines.counts[: BINS // 2].any() for analysis in analyses for _, cosines in analysis.kinds
    )
    return (-1.0 if negative else 0.0), 1.0


def _title(axes: Axes, text: str) -> None:
    lines = [printable(line, 26) for line in text.split("\n")]
    axes.set_title("\n".join(lines), fontsize=10, loc="left")


@styled
def spectrum_figure(analyses: Sequence[Analysis]) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.58 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    for index, analysis in enumerate(analyses):
        held = analysis.dimensions.explained
        colour, dashes = COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]
        (line,) = axes.plot(range(1, len(held) + 1), held, color=colour, linestyle=dashes)
        line.set(linewidth=2, label=printable(analysis.label, LONGEST_LABEL))
    axes.set_xscale("log")
    widest = max(len(analysis.dimensions.explained) for analysis in analyses)
    ticks = [value for value in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if value <= widest]
    axes.set_xticks(ticks, [str(value) for value in ticks])
    axes.minorticks_off()
    axes.set_xlim(1, max(widest, 2))
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("principal directions")
    axes.set_ylabel("variance held")
    if len(analyses) > 1:
        figure.legend(loc="outside upper left", ncols=3, fontsize=9.5)
    return figure


@styled
def plane_figure(analyses: Sequence[Analysis]) -> Figure:
    count = len(analyses)
    side = WIDTH / count if count > 1 else 0.72 * WIDTH
    names = analyses[0].class_names
    figure = Figure(figsize=(WIDTH, side + 1.0), layout="constrained", dpi=200)
    panels = figure.subplots(1, count, squeeze=False)[0]
    reach = max(float(np.abs(analysis.plane.points).max()) for analysis in analyses)
    reach = 1.05 * reach or 1.0
    chosen = coloured_classes(len(names))
    palette = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
    for axes, analysis in zip(panels, analyses, strict=True):
        plane = analysis.plane
        # Points of classes without a colour go behind all others.
        colours = np.full((len(plane.labels), 4), mpl.colors.to_rgba("#c8cdd2"))
        for index, label in enumerate(chosen):
            colours[plane.labels == label] = mpl.colors.to_rgba(palette[index])
        order = np.argsort(np.isin(plane.labels, chosen), kind="stable")
        axes.scatter(
            *plane.points[order].T,
            s=float(np.clip(6000 / len(order), 3, 16)) / count**0.5,
            c=colours[order],
            alpha=0.6,
            linewidths=0,
            rasterized=True,  # thousands of shapes would make a page of megabytes
        )
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        axes.tick_params(labelbottom=False, labelleft=False, length=0)
        first, second = (number(100 * share, 0) for share in plane.explained)
        axes.set_xlabel(f"{first} % of the variance", fontsize=9)
        axes.set_ylabel(f"{second} %", fontsize=9)
        _title(axes, analysis.label)
    handles = [
        Line2D([], [], color=palette[index], marker="o", linestyle="", markersize=5)
        for index in range(len(chosen))
    ]
    coloured_names = [printable(names[label], 12) for label in chosen]
    figure.legend(handles, coloured_names, loc="outside lower center", ncols=5, fontsize=8.5)
    return figure


def coloured_classes(classes: int) -> list[int]:
    """At most NAMED classes, spread over all of them."""
    return sorted({int(at) for at in np.linspace(0, classes - 1, min(classes, NAMED))})


class DriftQuantity(NamedTuple):
    title: str
    label: str
    values: Callable[[Drift], Sequence[float]]
    owners: Callable[[Drift], Sequence[str]]
    distance: bool = True  # never below 0


def _clients(drift: Drift) -> list[str]:
    return [f"client {client.client}" for client in drift.clients]


def _pairs(drift: Drift) -> list[str]:
    return [f"clients {one} and {other}" for one, other in drift.pairs]


DRIFTS = (
    DriftQuantity(
        "weights", "distance", lambda drift: [one.weights for one in drift.clients], _clients
    ),
    DriftQuantity(
        "features", "1 − cosine", lambda drift: [one.features for one in drift.clients], _clients
    ),
    DriftQuantity(
        "update cosine", "cosine", lambda drift: drift.update_cosines.tolist(), _pairs, False
    ),
)


def apart(values: Sequence[float]) -> NDArray[np.float64]:
    """Shifts up and down in a fixed pattern, so that equal values are two dots."""
    return np.float64(0.12) * (np.arange(len(values)) % 3 - 1)


@styled
def drift_figure(drifts: Sequence[tuple[str, Drift]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 0.9 + 0.42 * max(len(drifts), 2)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, quantity in zip(panels, DRIFTS, strict=True):
        for row, (_, drift) in enumerate(drifts):
            values, colour = quantity.values(drift), COLOURS[row % len(COLOURS)]
            if not values:
                continue
            heights = row + apart(values)
            axes.plot(values, heights, "o", color=colour, alpha=0.5, markersize=3.5, mew=0)
            axes.plot([np.mean(values)] * 2, [row - 0.3, row + 0.3], color=INK, linewidth=2)
        _title(axes, quantity.title)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.margins(x=0.08)
        if quantity.distance:
            axes.set_xlim(left=0)
    panels[0].set_yticks(range(len(drifts)), [printable(label, 14) for label, _ in drifts])
    panels[0].set_ylim(len(drifts) - 0.5, -0.5)
    return figure
