"""What `dcfl theory` measures: curves over M, their slopes, and a client's batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcfl.paper.sphere import Point, Sphere, measure, require_counts
from dcfl.report.document import Table
from dcfl.report.text import plural

SIGNAL = 4.0  # standard errors; a value closer to zero has no usable logarithm
FEWEST_FITTED = 3  # points: a line through two says nothing about its fit
# Positives and negatives among the other 63 images of a batch of 64: one positive; one positive and
# as many negatives as Dirichlet 0.3 on CIFAR-10 leaves; and all 21 positives of that split.
BATCHES = ((1, 63), (1, 42), (21, 42))
MINUS = "\N{MINUS SIGN}"
EXPECTED = {"mean deviation": f"{MINUS}1", "spread of one draw": f"{MINUS}1/2"}  # slopes


@dataclass(frozen=True)
class Slope:
    """A straight line through logarithms. Its error comes from the scatter about the line, be it
    noise or curvature; both are None where fewer than three points are left."""

    slope: float | None
    error: float | None
    used: tuple[int, ...]  # M; left out is what is early, or indistinguishable from zero

    def __str__(self) -> str:
        if self.slope is None or self.error is None:
            return "too few points"
        return f"{self.slope:.3f} ± {self.error:.3f}".replace("-", MINUS)


def fit_slope(
    points: Sequence[Point],
    value: Callable[[Point], float],
    error: Callable[[Point], float] = lambda point: 0.0,
    from_negatives: float = 0.0,
) -> Slope:
    late = [point for point in points if point.negatives >= from_negatives]
    clear = [point for point in late if abs(value(point)) > SIGNAL * error(point)]
    used = tuple(point.negatives for point in clear)
    if len(clear) < FEWEST_FITTED:
        return Slope(None, None, used)
    heights = np.log([abs(value(point)) for point in clear])
    (slope, _), covariance = np.polyfit(np.log(used), heights, 1, cov=True)
    return Slope(float(slope), math.sqrt(float(covariance[0, 0])), used)


@dataclass(frozen=True)
class Study:
    """One sphere: the curve over M, its slopes, and the points of a client's batches."""

    sphere: Sphere
    points: tuple[Point, ...]
    batches: tuple[Point, ...]

    @property
    def slopes(self) -> dict[str, tuple[Slope, Slope]]:
        """Of the mean and of a single draw: over all M, and where the curve is straight."""

        def mean(start: float) -> Slope:
            errors = (lambda point: point.deviation, lambda point: point.deviation_error)
            return fit_slope(self.points, *errors, start)

        def spread(start: float) -> Slope:
            return fit_slope(self.points, lambda point: point.spread, from_negatives=start)

        start = self.sphere.straight_from
        return {
            "mean deviation": (mean(0), mean(start)),
            "spread of one draw": (spread(0), spread(start)),
        }

    def as_json(self) -> dict[str, Any]:
        sphere = self.sphere
        return {
            **asdict(sphere),
            "limit": sphere.limit,
            "mean_coefficient": sphere.mean_coefficient,
            "spread_coefficient": sphere.spread_coefficient,
            "straight_from": sphere.straight_from,
            "points": [point.as_json() for point in self.points],
            "slopes": {
                name: {"all": asdict(everywhere), "straight": asdict(straight)}
                for name, (everywhere, straight) in self.slopes.items()
            },
            "batches": [point.as_json() for point in self.batches],
        }


def measure_theory(
    temperature: float,
    dimensions: Sequence[int],
    negatives: Sequence[int],
    repetitions: int,
    seed: int,
) -> list[Study]:
    # Checked before anything is drawn: a mistake in the last number costs no time.
    spheres = [Sphere(temperature, dimension) for dimension in dict.fromkeys(dimensions)]
    require_counts(negatives, repetitions, seed)

    def study(sphere: Sphere) -> Study:
        counts = sorted(set(negatives))
        points = [measure(sphere, count, repetitions, seed) for count in counts]
        batches = [measure(sphere, m, repetitions, seed, positives) for positives, m in BATCHES]
        return Study(sphere, tuple(points), tuple(batches))

    return [study(sphere) for sphere in spheres]


def short(value: float, digits: int = 3) -> str:
    """Significant digits, without powers of ten as long as it can be read."""
    return f"{float(f'{value:.{digits}g}'):,.12g}".replace("-", MINUS)


def tables_of(study: Study) -> list[Table]:
    sphere = study.sphere
    points = Table.of(
        [{"M": str(point.negatives), **_measured(point)} for point in study.points],
        title=f"Deviation from the limit {short(sphere.limit, 6)}, dimension {sphere.dimension}",
        note="Mean deviation: of many draws. Spread and RMS: of a single draw, about the mean and "
        "about the limit. First term: e^(2/τ)/M. Second: e^(2/τ)/(2√M).",
    )
    start = short(sphere.straight_from, 2)
    slopes = Table(
        columns=["slope over M", "for large M", "all M", f"M ≥ {start}"],
        rows=[
            [name, expected, *map(str, study.slopes[name])] for name, expected in EXPECTED.items()
        ],
        title="Slopes on logarithmic axes",
        note=f"From M = {start} curves are straight. Means within {SIGNAL:g} standard errors of "
        "zero are not fitted. The ± is scatter about the line, curvature included.",
    )
    batches = Table.of(
        [
            {
                "batch": f"{plural(point.positives, 'positive')}, {point.negatives} negatives",
                **_measured(point),
                "systematic": f"{100 * point.systematic:.0f} %",
                "pull kept": f"{100 * point.alignment_kept:.0f} %",
            }
            for point in study.batches
        ],
        title="A client's batch of 64",
        note="At most 63 others; with Dirichlet 0.3 on CIFAR-10 about 21 of them have the anchor's "
        "class, which leaves 42 negatives. Systematic: share of the mean square that every batch "
        "has. Pull kept: how much of the pull towards a positive the denominator leaves, where "
        "alignment alone has 100 %.",
    )
    return [points, slopes, batches]


def _measured(point: Point) -> dict[str, str]:
    return {
        "mean deviation": short(point.deviation),
        "± its error": short(point.deviation_error, 1),
        "spread": short(point.spread),
        "RMS": short(point.rms),
        "first term": short(point.positive_bound),
        "second term": short(point.sampling_bound),
        "bound / RMS": short(point.bound / point.rms, 2),
    }


def finding(study: Study) -> str:
    """What it means for the standard loss, in the numbers of a client's batch."""
    _, single, supervised = study.batches
    return (
        f"In dimension {study.sphere.dimension}, with {single.negatives} negatives, a batch's loss "
        f"is off its limit by {short(single.rms)} (RMS); {100 * single.systematic:.0f} % of the "
        f"square is there in every batch, because the positive counts for "
        f"{short(study.sphere.positive_weight, 2)} average negatives in its own denominator. With "
        f"{supervised.positives} positives there, as in the supervised loss, it is "
        f"{short(supervised.rms)}, and a positive keeps {100 * supervised.alignment_kept:.0f} % of "
        "its pull. Decoupling takes the positives out of the denominator: that part goes, the "
        "chance in the negatives stays."
    )
