"""An anchor, its positive and negatives on the unit sphere: the limit, its expansion, the bound.

Features are uniform on the sphere and the positive lies on the anchor, so the loss depends on
nothing but the cosine t of a negative with the anchor. In the mathematics:

    E = mean of e^(t/tau)              v = variance of e^(t/tau) / E^2
    w = e^(1/tau) / E                  r = (1/M) sum of e^(t_j/tau) / E, so its mean is 1
    limit = -1/tau + log E             deviation of one draw = log(r + w/M)

Everything is divided by E before it leaves the exponent, so nothing can overflow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dcfl.errors import require

Array = NDArray[np.float64]
LEAST_TEMPERATURE, GREATEST_TEMPERATURE = 0.01, 1000.0
GREATEST_DIMENSION = 1_000_000
STRAIGHT_FROM = 8.0  # see Sphere.straight_from


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
        """Of the loss minus log M."""
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

    @property
    def straight_from(self) -> float:
        """The M from which w/M and v/M are at most an eighth: from there the second order suffices,
        and curves are nearly straight on logarithmic axes."""
        return STRAIGHT_FROM * max(self.positive_weight, self.variance)

    @property
    def noise_leads_from(self) -> float:
        """The M from which chance moves a draw further than the mean deviation does."""
        return self.mean_coefficient / self.variance * self.mean_coefficient

    def positive_bound(self, negatives: float, positives: int = 1) -> float:
        """First term of the bound: for the positives in the denominator."""
        return positives * math.exp(2 / self.temperature) / negatives

    def sampling_bound(self, negatives: float) -> float:
        """Second term, with the constant that its derivation gives: for the mean over M draws in
        place of the expectation. No deviation can be larger than half the range."""
        return 0.5 * math.exp(2 / self.temperature) / math.sqrt(negatives)

    def bound(self, negatives: float, positives: int = 1) -> float:
        return self.positive_bound(negatives, positives) + self.sampling_bound(negatives)

    def certain_range(self, negatives: float) -> float:
        """What no deviation can exceed, because cosines lie between -1 and 1."""
        return 2 / self.temperature + math.log1p(self.positive_bound(negatives))

    @cached_property
    def bound_informs_from(self) -> float:
        """The least M whose bound is below `certain_range`; below that M it says nothing.

        The difference falls with M, so bisection finds it; in log M, because M may be huge.
        """
        low, high = 0.0, 4 / self.temperature + 20.0
        if self.bound(1.0) < self.certain_range(1.0):
            return 1.0
        for _ in range(200):
            middle = (low + high) / 2
            enough = self.bound(math.exp(middle)) < self.certain_range(math.exp(middle))
            low, high = (low, middle) if enough else (middle, high)
        return float(math.ceil(math.exp(high)))


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


def mean_ratios(sphere: Sphere, cosines: Array) -> Array:
    """r of each row of cosines."""
    ratios: Array = np.exp(cosines / sphere.temperature - sphere.uniformity).mean(axis=1)
    return ratios
