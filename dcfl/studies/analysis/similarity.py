"""How alike the embeddings of the same class are, and those of different classes.

All of it is about unit vectors u = z / ||z||; a zero vector stays zero, its cosines are 0. Means
and deviations are exact, from sums over classes in float64. Percentiles come from a histogram with
fine bins, and the overlap from one with the figure's bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl.errors import require
from dcfl.evaluation import alignment, similarity_histogram, uniformity
from dcfl.studies.analysis.features import drawn

BINS = 200  # of the figure and of the overlap, on [-1, 1]
FINE = 100 * BINS  # of the percentiles, which are off by at most one of these: 0.0001
PERCENTILES = (5, 50, 95)
MOST_UNIFORM = 10_000  # points whose pairs count for uniformity


@dataclass(frozen=True)
class Exponents:
    """Those of alignment, mean ||u - v||^alpha, and uniformity, log mean exp(-t ||u - v||^2); Wang
    and Isola use 2 for both."""

    alpha: float = 2.0
    t: float = 2.0

    def __post_init__(self) -> None:
        for name, value in (("alignment-alpha", self.alpha), ("uniformity-t", self.t)):
            require(0 < value <= 100, f"--{name} must lie above 0 and up to 100, not {value:g}")


USUAL = Exponents()


@dataclass(frozen=True)
class Cosines:
    """The cosines of one kind of pair; numbers are NaN where there is no pair."""

    pairs: int
    mean: float
    deviation: float
    percentiles: tuple[float, ...]  # at PERCENTILES
    counts: NDArray[np.int64]  # in BINS equal bins on [-1, 1]

    @property
    def density(self) -> NDArray[np.float64]:
        """Integrates to one over [-1, 1]."""
        return self.counts / max(self.pairs, 1) * (BINS / 2)

    def distance_from(self, target: float) -> float:
        """Root mean square of cosine - target: the mean's distance and the spread together."""
        return math.hypot(self.mean - target, self.deviation)

    def as_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "mean": self.mean,
            "deviation": self.deviation,
            **{
                f"percentile_{at}": value
                for at, value in zip(PERCENTILES, self.percentiles, strict=True)
            },
            "counts": self.counts.tolist(),
        }


@dataclass(frozen=True)
class Similarity:
    intra: Cosines  # pairs of the same class
    inter: Cosines  # pairs of different classes
    overlap: float  # the area that both densities cover, 0 to 1
    alignment: float  # mean ||u - v||^alpha over pairs of the same class
    view_alignment: float  # the same over pairs of views of one image; NaN without augmentation
    uniformity: float  # log mean exp(-t ||u - v||^2) over all pairs
    inter_uniformity: float  # over pairs of different classes alone
    exponents: Exponents = USUAL

    def as_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if isinstance(value, float)}
        return {
            "intra": self.intra.as_json(),
            "inter": self.inter.as_json(),
            **plain,
            "alignment_alpha": self.exponents.alpha,
            "uniformity_t": self.exponents.t,
        }


class Moments(NamedTuple):
    """Sums over unordered pairs."""

    pairs: int
    cosines: float
    squares: float  # of the cosines
    distances: float  # squared

    def minus(self, other: Moments) -> Moments:
        return Moments(
            self.pairs - other.pairs,
            self.cosines - other.cosines,
            self.squares - other.squares,
            self.distances - other.distances,
        )


def measure_similarity(
    embeddings: Tensor,
    labels: Tensor,
    views: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    exponents: Exponents = USUAL,
) -> Similarity:
    """`embeddings` [n, d] of n >= 2 images; `views`: embeddings of two views of some images;
    `seed`: chooses the points for uniformity, if there are too many."""
    unit = F.normalize(embeddings.double(), dim=1)
    all_pairs, same = moments(unit), same_class_moments(unit, labels)
    fine_intra, fine_inter = similarity_histogram(embeddings, labels, FINE)
    intra = _cosines(same, fine_intra)
    inter = _cosines(all_pairs.minus(same), fine_inter)
    chosen = drawn(len(unit), MOST_UNIFORM, seed)
    spread = unit[chosen]
    return Similarity(
        intra,
        inter,
        overlap(intra.counts, inter.counts),
        _within_classes(unit, labels, same, exponents.alpha),
        _between_views(views, exponents.alpha),
        float(uniformity(spread.float(), exponents.t)),
        inter_class_uniformity(spread, labels[chosen], exponents.t),
        exponents,
    )


def moments(unit: Tensor) -> Moments:
    """Of all pairs of the rows [n, d], without looking at any pair: n d^2 operations.

    sum_ij u_i.u_j = ||sum u||^2 and sum_ij (u_i.u_j)^2 = ||U'U||^2, where i = j counts once and
    every pair twice.
    """
    count, lengths = len(unit), unit.square().sum(dim=1)
    total = float(unit.sum(dim=0).square().sum())
    return Moments(
        count * (count - 1) // 2,
        (total - float(lengths.sum())) / 2,
        (float((unit.T @ unit).square().sum()) - float(lengths.square().sum())) / 2,
        count * float(lengths.sum()) - total,
    )


def same_class_moments(unit: Tensor, labels: Tensor) -> Moments:
    classes = [moments(unit[labels == label]) for label in torch.unique(labels)]
    return Moments(*(sum(values) for values in zip(*classes, strict=True)))


def _cosines(sums: Moments, fine: Tensor) -> Cosines:
    counts = fine.reshape(BINS, -1).sum(dim=1).numpy()
    if not sums.pairs:
        return Cosines(0, math.nan, math.nan, (math.nan,) * len(PERCENTILES), counts)
    mean = sums.cosines / sums.pairs
    variance = sums.squares / sums.pairs - mean**2
    at = tuple(percentile(fine.numpy(), share) for share in PERCENTILES)
    return Cosines(sums.pairs, mean, math.sqrt(max(variance, 0.0)), at, counts)


def percentile(counts: NDArray[np.int64], share: float) -> float:
    """The value below which `share` percent of the counts in equal bins on [-1, 1] are, taken to be
    evenly spread within a bin."""
    reached = np.cumsum(counts)
    target = share / 100 * reached[-1]
    bin_of = int(np.searchsorted(reached, target))
    before = reached[bin_of] - counts[bin_of]
    inside = (target - before) / counts[bin_of] if counts[bin_of] else 0.0
    return float(-1 + (bin_of + inside) * 2 / len(counts))


def overlap(intra: NDArray[np.int64], inter: NDArray[np.int64]) -> float:
    """sum min(p, q) over the bins: 1 if the two histograms agree, 0 if they have no bin in
    common."""
    if not (intra.sum() and inter.sum()):
        return math.nan
    return float(np.minimum(intra / intra.sum(), inter / inter.sum()).sum())


def _within_classes(unit: Tensor, labels: Tensor, same: Moments, alpha: float) -> float:
    """mean ||u - v||^alpha over pairs of the same class: with alpha = 2 from their sums."""
    if not same.pairs:
        return math.nan
    if alpha == 2:
        return same.distances / same.pairs
    total = 0.0
    for squared, alike in _pairs(unit, labels):
        total += float(squared.clamp_(min=0).pow_(alpha / 2).mul_(alike.triu(1)).sum())
    return total / same.pairs


def _between_views(views: tuple[Tensor, Tensor] | None, alpha: float) -> float:
    if views is None:
        return math.nan
    first, second = (F.normalize(view.double(), dim=1) for view in views)
    return float(alignment(first, second, alpha))


def inter_class_uniformity(unit: Tensor, labels: Tensor, t: float = USUAL.t) -> float:
    """log mean exp(-t ||u - v||^2) over pairs of different classes.

    Over all pairs it can only fall until every class is one point; this one has no such floor.
    """
    total, pairs = 0.0, 0
    for squared, alike in _pairs(unit, labels):
        different = (~alike).triu(1)
        # No logsumexp needed: distances between unit vectors are at most 2.
        total += float(torch.exp(-t * squared).mul_(different).sum())
        pairs += int(different.sum())
    return math.log(total / pairs) if pairs else math.nan


def _pairs(unit: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Squared distances of all pairs, in blocks, and which are of the same class. Every pair comes
    once in the upper triangles."""
    lengths, block = unit.square().sum(dim=1), 500
    for top in range(0, len(unit), block):
        rows, below = slice(top, top + block), slice(top, None)
        squared = lengths[rows, None] + lengths[None, below] - 2 * unit[rows] @ unit[below].T
        yield squared, labels[rows, None] == labels[None, below]
