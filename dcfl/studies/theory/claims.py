"""What the paper claims, and what was measured, in words."""

from __future__ import annotations

import math

from dcfl.report.text import listed
from dcfl.studies.theory.theory_study import SIGNAL, Study
from dcfl.studies.theory.theory_tables import numbers_text, short, slope_text


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
