"""What the paper claims, and what was measured, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dcfl.paper.theory_study import SIGNAL, Slope, Study, TheoryResult
from dcfl.report.document import Table
from dcfl.report.text import listed, plural

EXPECTED = {
    "mean deviation": "\N{MINUS SIGN}1",
    "spread of one draw": "\N{MINUS SIGN}1/2",
    "RMS of one draw": "\N{MINUS SIGN}1, later \N{MINUS SIGN}1/2",
    "bound": "\N{MINUS SIGN}1/2",
}


def points_table(study: Study) -> Table:
    sphere = study.sphere
    return Table.of(
        [
            {
                "M": str(point.negatives),
                "mean deviation": short(point.deviation),
                "± its error": short(point.deviation_error, 1),
                "spread": short(point.spread),
                "RMS": short(point.rms),
                "bound": short(point.bound),
                "first term": short(point.positive_bound),
                "second term": short(point.sampling_bound),
                "bound / RMS": short(point.bound / point.rms, 2),
                "bound / mean": short(point.bound / abs(point.deviation), 2),
            }
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
    once = [row for number, row in enumerate(rows) if row not in rows[:number]]
    return Table(list(rows[0]), [[str(value) for value in row.values()] for row in once]).csv()


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
        return f"Broken at M = {numbers_text(broken)}."
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
        f"Right for what one mini-batch sees: its spread falls with slope {slope_text(spread)} and "
        f"is {short(last.spread / predicted)} times {short(sphere.spread_coefficient)}/√M at M = "
        f"{last.negatives}. For the loss itself, the mean over batches, it is an upper bound and "
        f"not the rate: slope {slope_text(mean)}, that is 1/M."
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
    supervised = max(study.batches, key=lambda batch: batch.positives)
    single = min(study.batches, key=lambda batch: (batch.positives, batch.negatives))
    sphere = study.sphere
    kept, systematic = 100 * supervised.alignment_kept, 100 * single.systematic
    return (
        f"In dimension {sphere.dimension}, with {single.negatives} negatives, a batch's loss is "
        f"off its limit by {short(single.rms)} (RMS); {systematic:.0f} % of the square is there "
        f"in every batch, because the positive counts for {short(sphere.positive_weight, 2)} "
        f"average negatives in its own denominator, and the rest is chance, which batches average "
        f"away. With {supervised.positives} positives in the denominator, as in the supervised "
        f"loss, it is {short(supervised.rms)}, and a positive on the anchor keeps "
        f"{kept:.0f} % of its pull. Decoupling takes the positives out of the denominator: that "
        f"part goes, the chance in the negatives stays."
    )
