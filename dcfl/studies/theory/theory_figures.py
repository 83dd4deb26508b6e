"""The figures of the theory page."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from dcfl.report.plots import COLOURS, WIDTH, styled
from dcfl.studies.theory.theory_study import Study

MEAN, SPREAD, RMS, BOUND = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6]
GREY = "#8a9299"


@styled
def deviation_figure(study: Study) -> Figure:
    figure, axes = _axes(study, "deviation from the limit")
    sphere, across = study.sphere, [point.negatives for point in study.points]
    axes.plot(across, [p.bound for p in study.points], "-", color=BOUND, linewidth=2, label="bound")
    axes.plot(
        across,
        [sphere.certain_range(m) for m in across],
        ":",
        color=GREY,
        label="most that is possible",
    )
    measured = {
        "RMS of a draw": (RMS, "s", [p.rms for p in study.points]),
        "spread of a draw": (SPREAD, "^", [p.spread for p in study.points]),
        "mean deviation": (MEAN, "o", [abs(p.deviation) for p in study.points]),
    }
    for label, (colour, marker, values) in measured.items():
        # The RMS is hollow, because it covers the larger of the other two.
        size, filled = (9, "none") if colour is RMS else (5.5, colour)
        axes.plot(across, values, marker, color=colour, label=label, markersize=size, mfc=filled)
    predicted = {
        SPREAD: [sphere.spread_coefficient / m**0.5 for m in across],
        MEAN: [sphere.mean_coefficient / m for m in across],
    }
    for colour, values in predicted.items():
        axes.plot(across, values, "-", color=colour, linewidth=0.9, alpha=0.7, zorder=1.5)
    _finish(figure, axes, [*(v for _, _, vs in measured.values() for v in vs), *predicted[SPREAD]])
    return figure


@styled
def terms_figure(study: Study) -> Figure:
    figure, axes = _axes(study, "part of the deviation")
    points = study.points
    across = [point.negatives for point in points]
    lines = {
        "first term: e^(2/τ)/M": (MEAN, "--", [p.positive_bound for p in points]),
        "second term: e^(2/τ)/(2√M)": (SPREAD, "--", [p.sampling_bound for p in points]),
        "positive's part": (MEAN, "-o", [p.positive_part for p in points]),
        "negatives' part": (SPREAD, "-^", [p.sampling_part for p in points]),
    }
    for label, (colour, style, values) in lines.items():
        axes.plot(across, values, style, color=colour, markersize=5.5, linewidth=1.5, label=label)
    _finish(figure, axes, [value for _, _, values in lines.values() for value in values])
    return figure


def _axes(study: Study, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, 0.85 * WIDTH), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel="negatives M", ylabel=up)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_locator(LogLocator(10, numticks=9))
    axes.yaxis.set_minor_formatter(NullFormatter())
    batches = [batch.negatives for batch in study.batches]
    if batches:
        axes.axvspan(min(batches), max(batches), color=GREY, alpha=0.22, linewidth=0, zorder=0)
    return figure, axes


def _finish(figure: Figure, axes: Axes, values: Sequence[float]) -> None:
    """A legend above; the axis starts below the least positive value."""
    figure.legend(loc="outside upper left", ncols=2, fontsize=9.5)
    # `text.parse_math` is off, so ticks are written out and not as powers in TeX.
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0.6 * min(value for value in values if value > 0))
