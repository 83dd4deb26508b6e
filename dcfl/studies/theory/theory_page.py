"""What `dcfl theory` shows: the curves, the tables, and what they say in words."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from dcfl.report.document import Picture, Section, Table, render_document
from dcfl.report.plots import COLOURS, WIDTH, styled
from dcfl.report.text import listed, plural
from dcfl.studies.theory.limits import SIGNAL, Point, Slope, Sphere, Study

MEAN, SPREAD, RMS, BOUND = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6]
GREY = "#8a9299"
EXPECTED = {
    "mean deviation": "\N{MINUS SIGN}1",
    "spread of one draw": "\N{MINUS SIGN}1/2",
    "RMS of one draw": "\N{MINUS SIGN}1, later \N{MINUS SIGN}1/2",
    "bound": "\N{MINUS SIGN}1/2",
}


@dataclass(frozen=True)
class Result:
    """All that one call has measured."""

    studies: Sequence[Study]
    temperatures: Sequence[tuple[Sphere, Point]]  # the same M at several
    repetitions: int
    seed: int


def render(result: Result) -> str:
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


def points_table(study: Study) -> Table:
    sphere = study.sphere
    return Table(
        columns=[
            "M",
            "mean deviation",
            "± its error",
            "spread",
            "RMS",
            "bound",
            "first term",
            "second term",
            "bound / RMS",
            "bound / mean",
        ],
        rows=[
            [
                str(point.negatives),
                short(point.deviation),
                short(point.deviation_error, 1),
                short(point.spread),
                short(point.rms),
                short(point.bound),
                short(point.positive_bound),
                short(point.sampling_bound),
                short(point.bound / point.rms, 2),
                short(point.bound / abs(point.deviation), 2),
            ]
            for point in study.points
        ],
        title=f"Deviation from the limit {short(sphere.limit, 6)}, dimension {sphere.dimension}",
        note="Mean deviation: of many draws. Spread and RMS: of a single draw, about the mean and "
        "about the limit. First term: e^(2/τ)/M. Second: e^(2/τ)/(2√M).",
    )


def slopes_table(study: Study) -> Table:
    start = study.sphere.straight_from
    return Table(
        columns=["slope over M", "for large M", "all M", f"M ≥ {short(start, 2)}"],
        rows=[
            [name, EXPECTED[name], _slope(everywhere), _slope(straight)]
            for name, (everywhere, straight) in study.slopes.items()
        ],
        title="Slopes on logarithmic axes",
        note=left_out(study),
    )


def left_out(study: Study) -> str:
    """Which points were not fitted, and why."""
    _, straight = study.slopes["mean deviation"]
    said = [
        f"M ≥ {short(study.sphere.straight_from, 2)}: where w/M and v/M are below 1/8, so that "
        f"curves are straight; without M = {_numbers(straight.early)}."
        if straight.early
        else ""
    ]
    for name, (fit, _) in study.slopes.items():
        if fit.drowned:
            said.append(
                f"The {name} at M = {_numbers(fit.drowned)} is within {SIGNAL:g} standard errors "
                "of zero and is not fitted."
            )
    if not any(fit.drowned for fit, _ in study.slopes.values()):
        said.append("No point was drowned in noise.")
    return " ".join([*filter(None, said), "The ± is scatter about the line, curvature included."])


def batches_table(study: Study) -> Table:
    return Table(
        columns=["batch", "mean deviation", "spread", "RMS", "bound", "systematic", "pull kept"],
        rows=[
            [
                f"{plural(point.positives, 'positive')}, {point.negatives} negatives",
                short(point.deviation),
                short(point.spread),
                short(point.rms),
                short(point.bound),
                f"{100 * point.systematic:.0f} %",
                f"{100 * point.alignment_kept:.0f} %",
            ]
            for point in study.batches
        ],
        title="A client's batch of 64",
        note="At most 63 others; with Dirichlet 0.3 on CIFAR-10 about 21 of them have the anchor's "
        "class, which leaves 42 negatives. Systematic: share of the mean square that every batch "
        "has. Pull kept: how much of the pull towards a positive the denominator leaves, where "
        "alignment alone has 100 %.",
    )


def claims(study: Study) -> list[tuple[str, str]]:
    """What the paper says, and what was measured."""
    return [
        (
            "Theorem 1: L \N{MINUS SIGN} log M tends to \N{MINUS SIGN}1/τ + log E e^(t/τ).",
            _theorem(study),
        ),
        ("Proposition 1: it is off by at most e^(2/τ)/M + O(1/√M).", _proposition(study)),
        ("Its error term decays slowly, at the rate 1/√M.", _rate(study)),
        ("With a client's few negatives the term becomes large.", _client(study)),
        ("So the standard loss is not one for finite samples.", follows(study)),
    ]


def _theorem(study: Study) -> str:
    sphere, last = study.sphere, study.points[-1]
    off = (
        f"At M = {last.negatives} it is {short(last.deviation)} ± "
        f"{short(last.deviation_error, 1)} from {short(sphere.limit, 6)}"
    )
    if last.negatives < sphere.straight_from:
        return (
            f"{off}. The limit's regime begins only at about M = {short(sphere.straight_from, 2)}:"
            " this run does not reach it."
        )
    predicted = sphere.mean_coefficient / last.negatives
    return (
        f"{off}, which is {short(last.deviation / predicted)} times the "
        f"{short(sphere.mean_coefficient)}/M that the second order predicts."
    )


def _proposition(study: Study) -> str:
    points, sphere = study.points, study.sphere
    broken = [
        p.negatives for p in points if abs(p.deviation) - SIGNAL * p.deviation_error > p.bound
    ]
    if broken:
        return f"Broken at M = {_numbers(broken)}."
    loose = [point.bound / point.rms for point in points]
    above = sum(point.above_bound for point in points)
    draws = sum(point.repetitions for point in points)
    alone = all(abs(point.deviation) <= point.positive_bound for point in points)
    return (
        f"Holds at every M, with 1/2 e^(2/τ) as the constant of the second term: {above} of "
        f"{draws:,} single draws are above it. It is {short(min(loose), 2)} to "
        f"{short(max(loose), 2)} times the RMS of a draw. Below M = "
        f"{short(sphere.bound_informs_from, 2)} it exceeds what cosines between \N{MINUS SIGN}1 "
        f"and 1 allow anyway, and says nothing."
        + (" For the mean deviation the first term alone is enough." if alone else "")
    )


def _rate(study: Study) -> str:
    mean, spread = (study.slopes[name][1] for name in ("mean deviation", "spread of one draw"))
    sphere, last = study.sphere, study.points[-1]
    if mean.slope is None or spread.slope is None:
        return (
            f"Not decided: too few points at M ≥ {short(sphere.straight_from, 2)}, where the "
            "curves become straight."
        )
    predicted = sphere.spread_coefficient / math.sqrt(last.negatives)
    return (
        f"Right for what one mini-batch sees: its spread falls with slope {_slope(spread)} and is "
        f"{short(last.spread / predicted)} times {short(sphere.spread_coefficient)}/√M at M = "
        f"{last.negatives}. For the loss itself, the mean over batches, it is an upper bound and "
        f"not the rate: slope {_slope(mean)}, that is 1/M."
    )


def _client(study: Study) -> str:
    if not study.batches:
        return "Not measured."
    start = study.sphere.straight_from
    where = [
        f"with {batch.negatives} negatives by {short(batch.deviation)} in the mean and "
        f"{short(batch.spread)} by chance (bound {short(batch.bound)})"
        for batch in study.batches
        if batch.positives == 1
    ]
    early = max(batch.negatives for batch in study.batches) < start
    return (
        f"In a client's batch of 64 the loss is off {listed(where)}. That is "
        f"{'before' if early else 'about'} where the asymptotic regime begins, M = "
        f"{short(start, 2)}. To the second order, chance outweighs the mean from M = "
        f"{short(study.sphere.noise_leads_from, 2)}."
    )


def follows(study: Study) -> str:
    """What it means for the standard loss, in the numbers of a batch with many positives."""
    if not study.batches:
        return _rate(study)
    many = max(study.batches, key=lambda batch: batch.positives)
    one = min(study.batches, key=lambda batch: (batch.positives, batch.negatives))
    sphere = study.sphere
    return (
        f"In dimension {sphere.dimension}, with {one.negatives} negatives, a batch's loss is off "
        f"its limit by {short(one.rms)} (RMS); {100 * one.systematic:.0f} % of the square is there "
        f"in every batch, because the positive counts for {short(sphere.positive_weight, 2)} "
        f"average negatives in its own denominator, and the rest is chance, which batches average "
        f"away. With {many.positives} positives in the denominator, as in the supervised loss, it "
        f"is {short(many.rms)}, and a positive on the anchor keeps "
        f"{100 * many.alignment_kept:.0f} % of its pull. Decoupling takes the positives out of the "
        f"denominator: that part goes, the chance in the negatives stays."
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
        [f"The paper: {said} – Measured: {found}" for said, found in claims(study)],
        pictures=[
            Picture.of(
                "Deviation from the limit",
                deviation_figure(study),
                f"Mean deviation, spread, RMS and bound against M in dimension {dimension}",
                "Points are measured, thin lines what the second order predicts. The grey band "
                "is where a client's batch of 64 lies (42 to 63 negatives); above the dotted "
                "line a bound says nothing.",
            ),
            Picture.of(
                "The two terms, each with its bound",
                terms_figure(study),
                f"Both terms of the deviation with their bounds in dimension {dimension}",
                "Measured: what the positive adds by standing in the denominator, and how far "
                "the mean over the negatives is off, both on average over draws.",
            ),
        ],
        tables=[
            points_table(study),
            slopes_table(study),
            *([batches_table(study)] if study.batches else []),
        ],
    )


def _temperatures(result: Result) -> Section:
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
        # The RMS is hollow: it lies on whichever of the other two is the larger.
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
    drawn = Figure(figsize=(WIDTH, 0.85 * WIDTH), layout="constrained")
    axes = drawn.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel="negatives M", ylabel=up)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_major_locator(LogLocator(10, numticks=9))
    axes.yaxis.set_minor_formatter(NullFormatter())
    batches = [batch.negatives for batch in study.batches]
    if batches:
        axes.axvspan(min(batches), max(batches), color=GREY, alpha=0.22, linewidth=0, zorder=0)
    return drawn, axes


def _finish(drawn: Figure, axes: Axes, values: Sequence[float]) -> None:
    """A legend above; the axis down to the least value that is drawn and not zero."""
    drawn.legend(loc="outside upper left", ncols=2, fontsize=9.5)
    # `text.parse_math` is off, so ticks are written out and not as powers in TeX.
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0.6 * min(value for value in values if value > 0))


def csv_text(result: Result) -> str:
    """Every measured point, with all its digits."""
    rows = [
        {"temperature": sphere.temperature, "dimension": sphere.dimension, **point.as_json()}
        for sphere, point in [
            *(
                (study.sphere, p)
                for study in result.studies
                for p in (*study.points, *study.batches)
            ),
            *result.temperatures,
        ]
    ]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for number, row in enumerate(rows) if row not in rows[:number])
    return stream.getvalue()


def short(value: float, digits: int = 3) -> str:
    """Significant digits, without powers of ten as long as it can be read."""
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0:
        return "0"
    if 1e-5 <= abs(rounded) < 1e6:
        before = 1 + math.floor(math.log10(abs(rounded)))
        text = f"{rounded:,.{max(digits - before, 0)}f}"
    else:
        text = f"{rounded:.{digits - 1}e}"
    return text.replace("-", "\N{MINUS SIGN}")


def _slope(fit: Slope) -> str:
    if fit.slope is None or fit.error is None:
        return "too few points"
    return f"{fit.slope:.3f} ± {fit.error:.3f}".replace("-", "\N{MINUS SIGN}")


def _numbers(counts: Sequence[int]) -> str:
    return listed([str(count) for count in counts])
