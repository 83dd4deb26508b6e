"""The measured points as tables and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from dcfl.report.document import Table
from dcfl.report.text import listed, plural
from dcfl.studies.theory.theory_study import SIGNAL, Slope, Study, TheoryResult

EXPECTED = {
    "mean deviation": "\N{MINUS SIGN}1",
    "spread of one draw": "\N{MINUS SIGN}1/2",
    "RMS of one draw": "\N{MINUS SIGN}1, later \N{MINUS SIGN}1/2",
    "bound": "\N{MINUS SIGN}1/2",
}


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
            [name, EXPECTED[name], slope_text(everywhere), slope_text(straight)]
            for name, (everywhere, straight) in study.slopes.items()
        ],
        title="Slopes on logarithmic axes",
        note=left_out(study),
    )


def left_out(study: Study) -> str:
    """Which points were not fitted, and why."""
    _, straight = study.slopes["mean deviation"]
    sentences = [
        f"M ≥ {short(study.sphere.straight_from, 2)}: where w/M and v/M are below 1/8, so that "
        f"curves are straight; without M = {numbers_text(straight.early)}."
        if straight.early
        else ""
    ]
    for name, (fit, _) in study.slopes.items():
        if fit.drowned:
            sentences.append(
                f"The {name} at M = {numbers_text(fit.drowned)} is within {SIGNAL:g} standard "
                "errors of zero and is not fitted."
            )
    if not any(fit.drowned for fit, _ in study.slopes.values()):
        sentences.append("No point was drowned in noise.")
    return " ".join(
        [*filter(None, sentences), "The ± is scatter about the line, curvature included."]
    )


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


def csv_text(result: TheoryResult) -> str:
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


def slope_text(fit: Slope) -> str:
    if fit.slope is None or fit.error is None:
        return "too few points"
    return f"{fit.slope:.3f} ± {fit.error:.3f}".replace("-", "\N{MINUS SIGN}")


def numbers_text(counts: Sequence[int]) -> str:
    return listed([str(count) for count in counts])
