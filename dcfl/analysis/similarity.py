"""The embeddings of images: how alike those of the same and of different classes are, and how many
dimensions they use.

All of it is about unit vectors u = z / ||z||; a zero vector stays zero, its cosines are 0. Means
and deviations are exact, from sums over classes in float64. Percentiles come from a histogram with
fine bins, and the overlap from one with the figure's bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl.errors import ConfigError
from dcfl.evaluation import similarity_histogram, uniformity
from dcfl.models.output import Embedding
from dcfl.seeding import generator_for
from dcfl.system.wording import install_command
from dcfl.trained.subject import Subject, embed, require_finite


class Features(NamedTuple):
    embeddings: Tensor  # [n, d], float32, on the CPU
    labels: Tensor  # [n]
    accuracy: float  # of the classifier on them, percent


def features_of(subject: Subject, which: Embedding = "features") -> Features:
    dataset = subject.dataset
    embeddings, logits = embed(subject.model, dataset.test, dataset.preparation, which)
    require_finite(subject.run.folder, embeddings, logits)
    labels = dataset.test.labels.cpu()
    accuracy = 100 * float((logits.argmax(dim=1) == labels).double().mean())
    return Features(embeddings, labels, accuracy)


def drawn(count: int, most: int, seed: int) -> Tensor:
    """`most` of `count` indices without replacement, in ascending order; all if there are fewer."""
    if count <= most:
        return torch.arange(count)
    generator = generator_for(seed, 0, 0, "order")
    return torch.randperm(count, generator=generator)[:most].sort().values


SHOWN = 3000  # points in a picture
STILL = 1e-12  # share of the mean variance below which a dimension does not move


Layout = Literal["pca", "tsne", "umap"]


@dataclass(frozen=True)
class Plane:
    """The unit vectors in two dimensions: along the two directions in which they vary most, or as
    t-SNE or UMAP lay them out."""

    points: NDArray[np.float64]  # [shown, 2]
    labels: NDArray[np.int64]  # [shown]
    explained: tuple[float, float]  # share of the variance along each principal direction
    layout: Layout = "pca"


@dataclass(frozen=True)
class Dimensions:
    width: int
    zero: int  # dimensions that are exactly zero for every image: behind a ReLU, dead
    still: int  # dimensions that are the same for every image, the zero ones included
    effective_rank: float
    explained: NDArray[np.float64]  # cumulated over the principal directions, ends at 1

    @property
    def moving_share(self) -> float:
        return 1 - self.still / self.width

    @property
    def rank_share(self) -> float:
        return self.effective_rank / self.width

    def as_json(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "always_zero": self.zero,
            "constant": self.still,
            "moving_share": self.moving_share,
            "effective_rank": self.effective_rank,
            "effective_rank_share": self.rank_share,
            "cumulative_variance": [round(float(share), 6) for share in self.explained],
        }


def look_at(
    embeddings: Tensor, labels: Tensor, seed: int = 0, layout: Layout = "pca"
) -> tuple[Plane, Dimensions]:
    """`embeddings` [n, d]."""
    raw = embeddings.double().numpy()
    unit = F.normalize(embeddings.double(), dim=1).numpy()
    centred = unit - unit.mean(axis=0)
    directions, variances = principal_axes(centred)
    total = float(variances.sum())
    shares = variances / total if total else np.zeros_like(variances)
    chosen = drawn(len(unit), SHOWN, seed).numpy()
    axes = np.pad(directions[:2], ((0, max(0, 2 - len(directions))), (0, 0)))  # of one: one is flat
    plane = Plane(
        centred[chosen] @ axes.T if layout == "pca" else _laid_out(unit[chosen], seed, layout),
        labels.numpy()[chosen],
        (float(shares[0]), float(shares[1]) if len(shares) > 1 else 0.0),
        layout,
    )
    moves = raw.var(axis=0)
    dimensions = Dimensions(
        raw.shape[1],
        int((raw == 0).all(axis=0).sum()),
        int((moves <= STILL * moves.mean()).sum()),
        effective_rank(variances),
        np.cumsum(shares),
    )
    return plane, dimensions


def _laid_out(unit: NDArray[np.float64], seed: int, layout: Layout) -> NDArray[np.float64]:
    """Neighbours near each other: distances between groups mean little."""
    try:
        if layout == "tsne":
            from sklearn.manifold import TSNE

            near = min(30.0, (len(unit) - 1) / 3)
            program = TSNE(perplexity=near, init="pca", random_state=seed)
        else:
            from umap import UMAP

            program = UMAP(random_state=seed)
    except ModuleNotFoundError as error:
        how = install_command("tsne") if layout == "tsne" else "pip install umap-learn"
        raise ConfigError(f"--layout {layout} needs {error.name}: {how}") from error
    points: NDArray[np.float64] = program.fit_transform(unit).astype(np.float64)
    return np.asarray(points - points.mean(axis=0))


def principal_axes(
    centred: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of rows whose mean is zero: directions [k, d], orthonormal, and variances [k], descending.
    The largest entry of each direction is positive, so that the picture is the same whichever sign
    the decomposition has chosen."""
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(len(directions)), largest] < 0, -1.0, 1.0)
    return directions * signs[:, None], singular**2 / len(centred)


def effective_rank(variances: NDArray[np.float64]) -> float:
    """exp of the entropy of the variances along the principal directions, as shares: k if k of them
    are equal and the others zero. 0 if nothing varies."""
    # Zeros that rounding has made tiny would only add noise.
    nonzero = variances[variances > 1e-14 * variances.max(initial=0.0)]
    if not len(nonzero):
        return 0.0
    shares = nonzero / nonzero.sum()
    return math.exp(-float((shares * np.log(shares)).sum()))


BINS = 200  # of the figure and of the overlap, on [-1, 1]
FINE = 100 * BINS  # of the percentiles, which are off by at most one of these: 0.0001
PERCENTILES = (5, 50, 95)
MOST_UNIFORM = 10_000  # points whose pairs count for uniformity
T = 2.0  # of uniformity, as Wang and Isola have it; alignment is the mean of squared distances


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
        shares = zip(PERCENTILES, self.percentiles, strict=True)
        return {
            "pairs": self.pairs,
            "mean": self.mean,
            "deviation": self.deviation,
            **{f"percentile_{at}": value for at, value in shares},
            "counts": self.counts.tolist(),
        }


@dataclass(frozen=True)
class Similarity:
    intra: Cosines  # pairs of the same class
    inter: Cosines  # pairs of different classes
    overlap: float  # the area that both densities cover, 0 to 1
    alignment: float  # mean ||u - v||^2 over pairs of the same class
    uniformity: float  # log mean exp(-T ||u - v||^2) over all pairs
    inter_uniformity: float  # over pairs of different classes alone

    def as_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if isinstance(value, float)}
        return {"intra": self.intra.as_json(), "inter": self.inter.as_json(), **plain}


class Moments(NamedTuple):
    """Sums over unordered pairs."""

    pairs: int
    cosines: float
    squares: float  # of the cosines
    distances: float  # squared

    def minus(self, other: Moments) -> Moments:
        return Moments._make(own - theirs for own, theirs in zip(self, other, strict=True))


def measure_similarity(embeddings: Tensor, labels: Tensor, seed: int = 0) -> Similarity:
    """`embeddings` [n, d], n >= 2; `seed` chooses the points for uniformity, if there are many."""
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
        same.distances / same.pairs if same.pairs else math.nan,
        float(uniformity(spread.float(), T)),
        inter_class_uniformity(spread, labels[chosen]),
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
    """The value below which `share` percent of the counts in equal bins on [-1, 1] are."""
    reached = np.cumsum(counts)
    target = share / 100 * reached[-1]
    bin_of = int(np.searchsorted(reached, target))
    before = reached[bin_of] - counts[bin_of]
    inside = (target - before) / counts[bin_of] if counts[bin_of] else 0.0
    return float(-1 + (bin_of + inside) * 2 / len(counts))


def overlap(intra: NDArray[np.int64], inter: NDArray[np.int64]) -> float:
    """sum min(p, q) over the bins: 1 if the histograms agree, 0 without a bin in common."""
    if not (intra.sum() and inter.sum()):
        return math.nan
    return float(np.minimum(intra / intra.sum(), inter / inter.sum()).sum())


def inter_class_uniformity(unit: Tensor, labels: Tensor) -> float:
    """log mean exp(-T ||u - v||^2) over pairs of different classes.

    Over all pairs it can only fall until every class is one point; this one has no such floor.
    """
    total, pairs = 0.0, 0
    lengths, block = unit.square().sum(dim=1), 500
    for top in range(0, len(unit), block):  # every pair once, in the upper triangles
        rows, below = slice(top, top + block), slice(top, None)
        squared = lengths[rows, None] + lengths[None, below] - 2 * unit[rows] @ unit[below].T
        different = (labels[rows, None] != labels[None, below]).triu(1)
        # No logsumexp needed: distances between unit vectors are at most 2.
        total += float(torch.exp(-T * squared).mul_(different).sum())
        pairs += int(different.sum())
    return math.log(total / pairs) if pairs else math.nan
