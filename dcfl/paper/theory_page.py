"""The page that `dcfl theory` writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from dcfl.paper.theory_study import Study, TheoryResult
from dcfl.paper.theory_tables import (
    batches_table,
    claims,
    follows,
    points_table,
    short,
    slopes_table,
)
from dcfl.report import charts
from dcfl.report.charts import Chart, series
from dcfl.report.document import Picture, Section, Table, render_document
from dcfl.report.plots import COLOURS, WIDTH, styled
from dcfl.report.text import listed


def deviation_chart(study: Study) -> Chart:
    points, sphere = study.points, study.sphere
    across = [point.negatives for point in points]
    return _over_negatives(
        "deviation from the limit",
        [
            series("bound", across, [p.bound for p in points], 6),
            series(
                "most that is possible", across, list(map(sphere.certain_range, across)), 6, dash=2
            ),
            series("RMS of a draw", across, [p.rms for p in points], 2),
            series("spread of a draw", across, [p.spread for p in points], 1),
            series("mean deviation", across, [abs(p.deviation) for p in points], 0),
        ],
    )


def terms_chart(study: Study) -> Chart:
    points = study.points
    across = [point.negatives for point in points]
    return _over_negatives(
        "part of the deviation",
        [
            series("first term: e^(2/τ)/M", across, [p.positive_bound for p in points], 0, dash=1),
            series(
                "second term: e^(2/τ)/(2√M)", across, [p.sampling_bound for p in points], 1, dash=1
            ),
            series("positive's part", across, [p.positive_part for p in points], 0),
            series("negatives' part", across, [p.sampling_part for p in points], 1),
        ],
    )


def _over_negatives(up: str, lines: list[dict[str, Any]]) -> Chart:
    """Both axes are logarithmic, so that what is not above 0 is left out."""
    shown = [{**one, "y": [y if y and y > 0 else None for y in one["y"]]} for one in lines]
    axis = {"label": "negatives M", "log": True}
    return charts.plot(axis, {"label": up, "log": True}, [{"series": shown}])


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


CAUTIONS = (
    "Features here are uniform on the sphere, and the positive lies on the anchor. Features of a "
    "network gather in clusters: their spread is larger, and a positive that is not yet aligned "
    "weighs less in the denominator.",
    "Negatives here are independent draws from the distribution that the limit is about. A client "
    "draws them from its own classes; that difference does not shrink with M, and the proposition "
    "says nothing about it.",
    "This is about the value of the loss (and, where it says so, the pull of alignment), not about "
    "accuracy.",
)


def render(result: TheoryResult) -> str:
    first = result.studies[0]
    temperature = first.sphere.temperature
    sections = [_section(study) for study in result.studies]
    return render_document(
        title="Theorem 1 and Proposition 1, measured",
        facts=[
            ("temperature", f"{temperature:g}"),
            ("dimension", listed([str(study.sphere.dimension) for study in result.studies])),
            ("negatives", f"{first.points[0].negatives} to {first.points[-1].negatives}"),
            ("draws for each point", f"{result.repetitions:,}"),
            ("seed", str(result.seed)),
        ],
        # The highest dimension is the closest to a network's features.
        headline=follows(max(result.studies, key=lambda study: study.sphere.dimension)),
        sections=[_explained(temperature), *sections, _temperatures(result)],
        cautions=CAUTIONS,
    )


def _explained(temperature: float) -> Section:
    return Section(
        "What is measured",
        [
            "One positive, which lies on the anchor, and M independent negatives uniform on the "
            f"unit sphere; temperature τ = {temperature:g}. The loss is \N{MINUS SIGN}1/τ + "
            "log(e^(1/τ) + sum of e^(t/τ) over the negatives), t their cosines with the anchor. "
            "Its limit is known exactly, through a Bessel function; E is the mean of e^(t/τ), w = "
            "e^(1/τ)/E what the positive weighs, v the variance of e^(t/τ)/E.",
            "The first term of the bound is for the positive's place in the denominator. The "
            "second is for M draws in place of an expectation; the paper gives its order only, and "
            "the constant here is the one that its derivation yields.",
        ],
    )


def _section(study: Study) -> Section:
    dimension = study.sphere.dimension
    return Section(
        f"Dimension {dimension}",
        [f"The paper: {claim} – Measured: {finding}" for claim, finding in claims(study)],
        pictures=[
            Picture(
                "Deviation from the limit",
                partial(deviation_figure, study),
                f"Mean deviation, spread, RMS and bound against M in dimension {dimension}",
                "Points are measured, thin lines what the second order predicts. The grey band "
                "is where a client's batch of 64 lies (42 to 63 negatives); above the dotted "
                "line a bound says nothing.",
                deviation_chart(study),
            ),
            Picture(
                "The two terms, each with its bound",
                partial(terms_figure, study),
                f"Both terms of the deviation with their bounds in dimension {dimension}",
                "Measured: what the positive adds by standing in the denominator, and how far "
                "the mean over the negatives is off, both on average over draws.",
                terms_chart(study),
            ),
        ],
        tables=[
            points_table(study),
            slopes_table(study),
            *([batches_table(study)] if study.batches else []),
        ],
    )


def _temperatures(result: TheoryResult) -> Section:
    sphere, point = result.temperatures[0]
    return Section(
        "Where the bound is loose",
        ["e^(2/τ) is the square of the largest weight that a sample can have. Almost none has it."],
        [
            Table(
                columns=[
                    "τ",
                    "RMS of a draw",
                    "first term",
                    "second term",
                    "bound / RMS",
                    "any deviation is below",
                    "bound says something from M",
                ],
                rows=[
                    [
                        f"{sphere.temperature:g}",
                        short(point.rms),
                        short(point.positive_bound),
                        short(point.sampling_bound),
                        short(point.bound / point.rms, 2),
                        short(sphere.certain_range(point.negatives)),
                        short(sphere.bound_informs_from, 2),
                    ]
                    for sphere, point in result.temperatures
                ],
                title=f"M = {point.negatives}, dimension {sphere.dimension}",
            )
        ],
    )
