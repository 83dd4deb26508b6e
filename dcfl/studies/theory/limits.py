"""The contrastive loss with M negatives against its limit: drawn, and summed up.

The notation is that of sphere.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dcfl.errors import ConfigError, require
from dcfl.studies.theory.sphere import Array, Sphere, draw_cosines, mean_ratios

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
    spread_error: float
    rms: float  # of a single draw about the limit
    positive_part: float  # mean of what the positives in the denominator add
    sampling_part: float  # mean distance of log(mean over the negatives) from its limit
    alignment_kept: float  # mean share of the pull towards a positive that the denominator leaves
    positive_bound: float
    sampling_bound: float
    above_bound: int  # single draws further off than the bound

    @property
    def bound(self) -> float:
        return self.positive_bound + self.sampling_bound

    @property
    def systematic(self) -> float:
        """Share of the mean square that every draw has and that does not average out."""
        return min(1.0, (self.deviation / self.rms) ** 2) if self.rms else 0.0

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "bound": self.bound, "systematic": self.systematic}


def measure(
    sphere: Sphere, negatives: int, repetitions: int, seed: int = 0, positives: int = 1
) -> Point:
    """Draw the loss `repetitions` times. A point's numbers do not depend on the other points.

    Several positives, all on the anchor, are the supervised loss, per positive.
    """
    require_counts([negatives], repetitions, seed)
    rng = np.random.default_rng([seed, sphere.dimension, negatives])
    rows = max(1, CHUNK // negatives)
    ratios = np.concatenate(
        [
            mean_ratios(sphere, draw_cosines(rng, (count, negatives), sphere.dimension))
            for count in _split(repetitions, rows)
        ]
    )
    return summarise(sphere, negatives, ratios, positives)


def summarise(sphere: Sphere, negatives: int, ratios: Array, positives: int = 1) -> Point:
    weight = positives * sphere.positive_weight / negatives
    # log(r + w/M) in two parts, so that a spread far below the deviation keeps its digits.
    common = math.log1p(weight)
    fluctuation = np.log1p((ratios - 1.0) / (1.0 + weight))
    deviations = common + fluctuation
    mean, error = _mean(sphere, negatives, ratios, fluctuation)
    spread, spread_error = _spread(fluctuation)
    positive_bound = sphere.positive_bound(negatives, positives)
    sampling_bound = sphere.sampling_bound(negatives)
    return Point(
        negatives=negatives,
        positives=positives,
        repetitions=len(ratios),
        deviation=common + mean,
        deviation_error=error,
        spread=spread,
        spread_error=spread_error,
        rms=float(np.sqrt(np.mean(deviations**2))),
        positive_part=float(np.log1p(weight / ratios).mean()),
        sampling_part=float(np.abs(np.log(ratios)).mean()),
        alignment_kept=float((ratios / (ratios + weight)).mean()),
        positive_bound=positive_bound,
        sampling_bound=sampling_bound,
        above_bound=int(np.count_nonzero(np.abs(deviations) > positive_bound + sampling_bound)),
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


def _spread(deviations: Array) -> tuple[float, float]:
    squares = (deviations - deviations.mean()) ** 2
    spread = math.sqrt(float(squares.mean()))
    of_squares = float(squares.std()) / math.sqrt(len(squares))
    return spread, of_squares / (2 * spread) if spread else 0.0


def _split(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


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
