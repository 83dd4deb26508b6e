"""What `dcfl theory` measures: the contrastive loss with M negatives against its limit, and in a
client's batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.errors import ConfigError, require
from dcfl.report.document import Table
from dcfl.report.text import plural

Array = NDArray[np.float64]
LEAST_TEMPERATURE, GREATEST_TEMPERATURE = 0.01, 1000.0
GREATEST_DIMENSION = 1_000_000


@dataclass(frozen=True)
class Sphere:
    """Anchor, positive and negatives on the unit sphere, seen at one temperature."""

    temperature: float = 0.5  # tau
    dimension: int = 3  # d

    def __post_init__(self) -> None:
        require(
            LEAST_TEMPERATURE <= self.temperature <= GREATEST_TEMPERATURE,
            f"temperature must be from {LEAST_TEMPERATURE:g} to {GREATEST_TEMPERATURE:g}, "
            f"not {self.temperature:g}: the bound grows as e^(2/temperature)",
        )
        require(
            2 <= self.dimension <= GREATEST_DIMENSION,
            f"dimension must be from 2 to {GREATEST_DIMENSION}, not {self.dimension}",
        )

    @cached_property
    def uniformity(self) -> float:
        """log E, the second term of the limit."""
        return log_mean_exponential(1 / self.temperature, self.dimension)

    @cached_property
    def limit(self) -> float:
        """The limit of the loss minus log M."""
        return self.uniformity - 1 / self.temperature

    @cached_property
    def variance(self) -> float:
        """v: of one negative's exponential, relative to its mean."""
        of_squares = log_mean_exponential(2 / self.temperature, self.dimension)
        return math.expm1(of_squares - 2 * self.uniformity)

    @cached_property
    def positive_weight(self) -> float:
        """w: how many average negatives the positive counts for in the denominator."""
        return math.exp(1 / self.temperature - self.uniformity)

    @property
    def mean_coefficient(self) -> float:
        """The mean deviation is this over M for large M: log(r + w/M) to the second order."""
        return self.positive_weight - self.variance / 2

    @property
    def spread_coefficient(self) -> float:
        """The spread of one draw is this over the root of M for large M."""
        return math.sqrt(self.variance)

    def positive_bound(self, negatives: float, positives: int = 1) -> float:
        """First term of the bound: for the positives in the denominator."""
        return positives * math.exp(2 / self.temperature) / negatives

    def sampling_bound(self, negatives: float) -> float:
        """Second term, with the constant that its derivation gives: for the mean over M draws in
        place of the expectation. No deviation can be larger than half the range."""
        return 0.5 * math.exp(2 / self.temperature) / math.sqrt(negatives)


def log_mean_exponential(steepness: float, dimension: int) -> float:
    """log of the mean of e^(steepness * t), t the cosine of a uniform vector in R^dimension.

    That is log(Gamma(nu+1) (2/k)^nu I_nu(k)), nu = dimension/2 - 1, by the power series of the
    Bessel function, whose terms (k/2)^2n / (n! (nu+1)...(nu+n)) are all positive: nothing cancels.
    They are added up relative to the largest, which may be beyond a float's range.
    """
    if steepness == 0:
        return 0.0
    # Beyond n = k each term is less than a quarter of the one before.
    n = np.arange(1, math.ceil(steepness) + 60, dtype=np.float64)
    order = dimension / 2 - 1
    terms = np.cumsum(2 * math.log(steepness / 2) - np.log(n) - np.log(order + n))
    largest = float(terms.max())
    if largest <= 0:  # the term for n = 0, which is 1, is the largest: log1p keeps the rest exact
        return math.log1p(float(np.exp(terms).sum()))
    return largest + math.log(float(np.exp(terms - largest).sum()) + math.exp(-largest))


def draw_cosines(rng: np.random.Generator, shape: tuple[int, int], dimension: int) -> Array:
    """Cosines of independent uniform vectors with a fixed one, without drawing the vectors."""
    if dimension == 3:  # Archimedes: slices of a ball's surface of equal width have equal area
        return rng.uniform(-1.0, 1.0, shape)
    half = (dimension - 1) / 2
    return 2 * rng.beta(half, half, shape) - 1


FEWEST_REPETITIONS = 100  # fewer say little about a spread
MOST_DRAWS = 5e9  # several minutes
CHUNK = 2**18  # cosines in memory at a time


@dataclass(frozen=True)
class Point:
    """What many draws with the same number of negatives show."""

    negatives: int  # M
    positives: int
    repetitions: int
    deviation: float  # mean of (loss - log M) - limit
    deviation_error: float  # its standard error
    spread: float  # standard deviation of a single draw
    rms: float  # of a single draw about the limit
    alignment_kept: float  # mean share of the pull towards a positive that the denominator leaves
    systematic: float  # share of the mean square that every draw has: it does not average out
    positive_bound: float
    sampling_bound: float
    above_bound: int  # single draws further off than the bound, which is the sum of the two


def measure(
    sphere: Sphere, negatives: int, repetitions: int, seed: int = 0, positives: int = 1
) -> Point:
    """Draw the loss `repetitions` times. A point's numbers do not depend on the other points.

    Several positives, all on the anchor, are the supervised loss, per positive.
    """
    rng = np.random.default_rng([seed, sphere.dimension, negatives])
    rows, ratios = max(1, CHUNK // negatives), []
    for start in range(0, repetitions, rows):
        shape = (min(rows, repetitions - start), negatives)
        cosines = draw_cosines(rng, shape, sphere.dimension)
        ratios.append(np.exp(cosines / sphere.temperature - sphere.uniformity).mean(axis=1))
    return summarise(sphere, negatives, np.concatenate(ratios), positives)


def summarise(sphere: Sphere, negatives: int, ratios: Array, positives: int = 1) -> Point:
    weight = positives * sphere.positive_weight / negatives
    # log(r + w/M) in two parts, so that a spread far below the deviation keeps its digits.
    common = math.log1p(weight)
    fluctuation = np.log1p((ratios - 1.0) / (1.0 + weight))
    deviations = common + fluctuation
    mean, error = _mean(sphere, negatives, ratios, fluctuation)
    rms = float(np.sqrt(np.mean(deviations**2)))
    bounds = sphere.positive_bound(negatives, positives), sphere.sampling_bound(negatives)
    return Point(
        negatives=negatives,
        positives=positives,
        repetitions=len(ratios),
        deviation=common + mean,
        deviation_error=error,
        spread=float(fluctuation.std()),
        rms=rms,
        alignment_kept=float((ratios / (ratios + weight)).mean()),
        systematic=min(1.0, ((common + mean) / rms) ** 2) if rms else 0.0,
        positive_bound=bounds[0],
        sampling_bound=bounds[1],
        above_bound=int(np.count_nonzero(np.abs(deviations) > sum(bounds))),
    )


def _mean(sphere: Sphere, negatives: int, ratios: Array, deviations: Array) -> tuple[float, float]:
    """The mean and its standard error.

    The mean falls as 1/M and the noise only as its root: in a plain average the mean would drown.
    But nearly all the noise is that of r, whose mean is known to be 1: it is regressed out, except
    where r has so long a tail that a sample does not show its variance.
    """
    count = len(ratios)
    noise = ratios - 1.0
    centred = noise - noise.mean()
    if sphere.variance <= min(negatives, count) and (square := float(centred @ centred)) > 0:
        deviations = deviations - float(deviations @ centred) / square * noise
    return float(deviations.mean()), float(deviations.std(ddof=2)) / math.sqrt(count)


def require_counts(negatives: Sequence[int], repetitions: int, seed: int) -> None:
    require(len(negatives) > 0, "samples must name at least one number of negatives, such as 64")
    if (least := min(negatives)) < 1:
        raise ConfigError(f"samples must be 1 or more negatives each, not {least}")
    require(
        repetitions >= FEWEST_REPETITIONS,
        f"repetitions must be at least {FEWEST_REPETITIONS}, not {repetitions}",
    )
    draws = float(sum(negatives)) * repetitions
    require(
        draws <= MOST_DRAWS,
        f"samples times repetitions are {draws:.1e} draws, more than {MOST_DRAWS:.0e}: "
        "take fewer of either",
    )
    require(seed >= 0, f"seed must be 0 or more, not {seed}")


# Positives and negatives among the other 63 images of a batch of 64: one positive; one positive and
# as many negatives as Dirichlet 0.3 on CIFAR-10 leaves; and all 21 positives of that split.
BATCHES = ((1, 63), (1, 42), (21, 42))
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Study:
    sphere: Sphere
    points: Sequence[Point]
    batches: Sequence[Point]

    def as_json(self) -> dict[str, Any]:
        sphere = self.sphere
        return {
            **asdict(sphere),
            "limit": sphere.limit,
            "mean_coefficient": sphere.mean_coefficient,
            "spread_coefficient": sphere.spread_coefficient,
            "points": list(map(asdict, self.points)),
            "batches": list(map(asdict, self.batches)),
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
    studies = []
    for sphere in spheres:
        points = [measure(sphere, m, repetitions, seed) for m in sorted(set(negatives))]
        batches = [measure(sphere, m, repetitions, seed, positives) for positives, m in BATCHES]
        studies.append(Study(sphere, points, batches))
    return studies


def short(value: float, digits: int = 3) -> str:
    """Significant digits, without powers of ten as long as it can be read."""
    return f"{float(f'{value:.{digits}g}'):,.12g}".replace("-", MINUS)


def tables_of(study: Study) -> list[Table]:
    sphere = study.sphere
    points = [
        {
            "M": str(point.negatives),
            **_measured(point),
            "mean · M": short(point.deviation * point.negatives),
            "spread · √M": short(point.spread * point.negatives**0.5),
        }
        for point in study.points
    ]
    batches = [
        {
            "batch": f"{plural(point.positives, 'positive')}, {point.negatives} negatives",
            **_measured(point),
            "systematic": f"{100 * point.systematic:.0f} %",
            "pull kept": f"{100 * point.alignment_kept:.0f} %",
        }
        for point in study.batches
    ]
    return [
        Table.of(
            points,
            title=f"Deviation from the limit {short(sphere.limit, 6)}, "
            f"dimension {sphere.dimension}",
            note="Mean deviation: of many draws. Spread and RMS: of a single draw, about the mean "
            "and about the limit. First term: e^(2/τ)/M. Second: e^(2/τ)/(2√M). For large M, "
            f"mean · M tends to {short(sphere.mean_coefficient)} and spread · √M to "
            f"{short(sphere.spread_coefficient)}.",
        ),
        Table.of(
            batches,
            title="A client's batch of 64",
            note="At most 63 others; with Dirichlet 0.3 on CIFAR-10 about 21 of them have the "
            "anchor's class, which leaves 42 negatives. Systematic: share of the mean square that "
            "every batch has. Pull kept: how much of the pull towards a positive the denominator "
            "leaves, where alignment alone has 100 %.",
        ),
    ]


def _measured(point: Point) -> dict[str, str]:
    return {
        "mean deviation": short(point.deviation),
        "± its error": short(point.deviation_error, 1),
        "spread": short(point.spread),
        "RMS": short(point.rms),
        "first term": short(point.positive_bound),
        "second term": short(point.sampling_bound),
        "bound / RMS": short((point.positive_bound + point.sampling_bound) / point.rms, 2),
    }


def finding(study: Study) -> str:
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
