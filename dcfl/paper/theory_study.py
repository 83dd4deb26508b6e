"""Curves over M and their slopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcfl.paper.sphere import Point, Sphere, measure, require_counts

SIGNAL = 4.0  # standard errors; a value closer to zero has no usable logarithm
FEWEST_FITTED = 3  # points: a line through two says nothing about its fit
# Positives and negatives among the other 63 images of a batch of 64: one positive; one positive and
# as many negatives as Dirichlet 0.3 on CIFAR-10 leaves; and all 21 positives of that split.
BATCHES = ((1, 63), (1, 42), (21, 42))
OTHER_TEMPERATURES = (1.0, 0.5, 0.2, 0.1, 0.05)
COMPARED_AT = 64  # negatives


@dataclass(frozen=True)
class Slope:
    """A straight line through logarithms. Its error comes from the scatter about the line, be it
    noise or curvature; both are None where fewer than three points are left."""

    slope: float | None
    error: float | None
    used: tuple[int, ...]  # M
    drowned: tuple[int, ...]  # left out: indistinguishable from zero
    early: tuple[int, ...]  # left out: below the first M to be fitted


def fit_slope(
    points: Sequence[Point],
    value: Callable[[Point], float],
    error: Callable[[Point], float] = lambda point: 0.0,
    from_negatives: float = 0.0,
) -> Slope:
    early = tuple(point.negatives for point in points if point.negatives < from_negatives)
    later = [point for point in points if point.negatives >= from_negatives]
    clear = [point for point in later if abs(value(point)) > SIGNAL * error(point)]
    used = tuple(point.negatives for point in clear)
    drowned = tuple(point.negatives for point in later if point.negatives not in used)
    if len(clear) < FEWEST_FITTED:
        return Slope(None, None, used, drowned, early)
    x = np.log([point.negatives for point in clear])
    y = np.log([abs(value(point)) for point in clear])
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    scatter = float(((y - slope * x) ** 2).sum()) / (len(clear) - 2)
    return Slope(slope, math.sqrt(scatter / float(x @ x)), used, drowned, early)


@dataclass(frozen=True)
class Study:
    """One sphere: the curve over M, its slopes, and the points of a client's batches."""

    sphere: Sphere
    points: tuple[Point, ...]
    batches: tuple[Point, ...]

    @property
    def slopes(self) -> dict[str, tuple[Slope, Slope]]:
        """The slopes of each quantity: over all M, and where the curve is straight."""
        start = self.sphere.straight_from

        def fits(
            value: Callable[[Point], float], error: Callable[[Point], float] = lambda point: 0.0
        ) -> tuple[Slope, Slope]:
            return (
                fit_slope(self.points, value, error),
                fit_slope(self.points, value, error, start),
            )

        return {
            "mean deviation": fits(lambda p: p.deviation, lambda p: p.deviation_error),
            "spread of one draw": fits(lambda p: p.spread, lambda p: p.spread_error),
            "RMS of one draw": fits(lambda p: p.rms),
            "bound": fits(lambda p: p.bound),
        }

    def as_json(self) -> dict[str, Any]:
        sphere = self.sphere
        return {
            **asdict(sphere),
            "limit": sphere.limit,
            "uniformity": sphere.uniformity,
            "mean_coefficient": sphere.mean_coefficient,
            "spread_coefficient": sphere.spread_coefficient,
            "straight_from": sphere.straight_from,
            "noise_leads_from": sphere.noise_leads_from,
            "bound_informs_from": sphere.bound_informs_from,
            "points": [point.as_json() for point in self.points],
            "slopes": {
                name: {"all": asdict(everywhere), "straight": asdict(straight)}
                for name, (everywhere, straight) in self.slopes.items()
            },
            "batches": [point.as_json() for point in self.batches],
        }


def study(
    sphere: Sphere,
    negatives: Sequence[int],
    repetitions: int,
    seed: int = 0,
    batches: Sequence[tuple[int, int]] = (),
) -> Study:
    """`batches`: pairs of positives and negatives, as a client's batch has them."""
    require_counts(negatives, repetitions, seed)
    return Study(
        sphere,
        tuple(measure(sphere, count, repetitions, seed) for count in sorted(set(negatives))),
        tuple(
            measure(sphere, others, repetitions, seed, positives) for positives, others in batches
        ),
    )


@dataclass(frozen=True)
class TheoryResult:
    """Everything that one call of `dcfl theory` measured."""

    studies: Sequence[Study]
    temperatures: Sequence[tuple[Sphere, Point]]  # one M at several temperatures
    repetitions: int
    seed: int

    def as_json(self) -> dict[str, Any]:
        return {
            "repetitions": self.repetitions,
            "seed": self.seed,
            "studies": [study.as_json() for study in self.studies],
            "temperatures": [
                {**asdict(sphere), **point.as_json()} for sphere, point in self.temperatures
            ],
        }


def measure_theory(
    temperature: float,
    dimensions: Sequence[int],
    negatives: Sequence[int],
    repetitions: int,
    seed: int,
) -> TheoryResult:
    """Each sphere, and the first one at other temperatures."""
    # Checked before anything is drawn: a mistake in the last number costs no time.
    spheres = [Sphere(temperature, dimension) for dimension in dict.fromkeys(dimensions)]
    require_counts(negatives, repetitions, seed)
    others = [
        Sphere(other, spheres[0].dimension)
        for other in sorted({*OTHER_TEMPERATURES, temperature}, reverse=True)
    ]
    return TheoryResult(
        [study(sphere, negatives, repetitions, seed, BATCHES) for sphere in spheres],
        [(sphere, measure(sphere, COMPARED_AT, repetitions, seed)) for sphere in others],
        repetitions,
        seed,
    )
