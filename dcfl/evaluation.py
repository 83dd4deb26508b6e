"""Measures a model's accuracy and the geometry of its embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data.client_data import bounds, clean_batches
from dcfl.data.datasets import Dataset
from dcfl.models.output import FeatureModel
from dcfl.system.transfers import read_numbers

__all__ = ["alignment", "ema", "similarity_histogram", "uniformity"]


# What a client's own number is taken on. The second is for clients without test images.
OWN_IMAGES, OWN_MIX = "its own test images", "its own mix of classes"


class Evaluation(NamedTuple):
    accuracy: float  # top-1, percent
    loss: float  # mean cross-entropy
    by_class: Tensor  # accuracy of each class [classes], percent; NaN without test images
    by_owner: Tensor | None = None  # of each client on its own test images; None: nobody has any


class Score(NamedTuple):
    """The score of one part of the test images. Parts may be scored anywhere, in any order."""

    right: list[int]  # correct answers per class, for each owner of images in turn
    losses: list[float]  # summed over each batch


PART = 1000  # images per part


def score_model(model: FeatureModel, dataset: Dataset) -> Evaluation:
    """Top-1 accuracy and cross-entropy over all test images."""
    parts = scored_parts(dataset)
    return evaluation([score(model, dataset, *part) for part in parts], dataset)


def scored_parts(dataset: Dataset) -> list[tuple[int, int]]:
    return bounds(len(dataset.test), PART)


@torch.inference_mode()
def score(model: FeatureModel, dataset: Dataset, start: int, end: int) -> Score:
    """Score the batches that begin within the part; batches do not depend on the parts."""
    images, classes = dataset.scored_cells, dataset.classes
    right = torch.zeros(dataset.cells, dtype=torch.int64, device=images.labels.device)
    losses = []
    with evaluating(model):
        for batch in clean_batches(images, dataset.preparation, model, (start, end)):
            logits, labels = model(batch.images).logits, batch.labels % classes
            # Of scores that are not numbers argmax would make an answer: the first class.
            hits = (logits.argmax(dim=1) == labels) & logits.isfinite().all(dim=1)
            right.index_add_(0, batch.labels, hits.to(right.dtype))
            losses.append(F.cross_entropy(logits, labels, reduction="sum"))
    numbers = read_numbers([right, *losses])  # the only wait for the device
    return Score([int(n) for n in numbers[: len(right)]], numbers[len(right) :])


def evaluation(scores: Sequence[Score], dataset: Dataset) -> Evaluation:
    """Combine all parts in order, which gives the same bits wherever each was scored."""
    count, sizes = max(len(dataset.test), 1), dataset.cell_sizes
    right = torch.tensor([score.right for score in scores], dtype=torch.float64).sum(dim=0)
    right = right.reshape(sizes.shape)
    loss = sum(loss for score in scores for loss in score.losses)
    by_class, by_owner = (100 * right.sum(dim=d) / sizes.sum(dim=d) for d in (0, 1))
    owned = dataset.test.owners is not None
    accuracy = 100 * float(right.sum()) / count
    return Evaluation(accuracy, loss / count, by_class, by_owner if owned else None)


def client_accuracies(result: Evaluation, mixes: Tensor) -> Tensor:
    """Of each client [clients], percent: on its own test images or, where no client has any, on all
    of them in its own mix of classes. NaN where there is nothing to score."""
    if result.by_owner is not None:
        return result.by_owner
    return own_mix_accuracies(result.by_class, mixes)


def own_mix_accuracies(by_class: Tensor, mixes: Tensor) -> Tensor:
    """Each client's accuracy on test images weighted by its own mix of classes: [clients].

    `mixes` [clients, classes]. A class without test images is left out of every mix; a client with
    no other class gets NaN.
    """
    known = by_class.isfinite()
    weights = mixes[:, known]
    return (weights @ by_class[known]) / weights.sum(dim=1)


def finite_or_none(accuracy: float) -> float | None:
    """The accuracy, or None where there was nothing to score."""
    return accuracy if math.isfinite(accuracy) else None


class Fairness(NamedTuple):
    """Over the clients: the mean, and the mean of the worst tenth (at least one of them)."""

    mean: float | None
    worst_tenth: float | None


def fairness(accuracies: Tensor) -> Fairness:
    known = accuracies[accuracies.isfinite()]
    if not len(known):
        return Fairness(None, None)
    worst = known.topk(max(1, len(known) // 10), largest=False).values
    return Fairness(float(known.mean()), float(worst.mean()))


def ema(values: Sequence[float], decay: float = 0.9, rounds: Sequence[int] | None = None) -> float:
    """The exponential moving average after the last value; the first value starts it.

    Args:
        values: At least one.
        decay: The weight of the past, for each round that has passed since.
        rounds: The round of each value, where not every round has one: the past then keeps
            `decay ** gap`, and the average stays comparable with one over all rounds.

    Returns:
        The average.

    Example:
        >>> import dcfl
        >>> round(dcfl.evaluation.ema([10.0, 20.0]), 6)
        11.0
    """
    if not values:
        raise ValueError("the moving average of no values is not defined")
    average, *later = values
    gaps = [1] * len(later) if rounds is None else [b - a for a, b in pairwise(rounds)]
    for value, gap in zip(later, gaps, strict=True):
        kept = decay**gap
        average = kept * average + (1 - kept) * value
    return average


def alignment(x: Tensor, y: Tensor, alpha: float = 2) -> Tensor:
    """Mean ||x_i - y_i||^alpha over positive pairs of unit vectors; lower is better.

    Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere", ICML 2020. With alpha = 2 it is the mean of 2 - 2 cos.

    Args:
        x: Unit vectors [n, d].
        y: The partner of each [n, d].
        alpha: The power of the distance.

    Returns:
        A scalar.

    Example:
        >>> import dcfl, torch
        >>> x = torch.tensor([[1.0, 0.0]])
        >>> round(dcfl.evaluation.alignment(x, torch.tensor([[0.0, 1.0]])).item(), 4)
        2.0
    """
    distances: Tensor = torch.linalg.vector_norm(x - y, dim=1)
    return distances.pow(alpha).mean()


def uniformity(x: Tensor, t: float = 2) -> Tensor:
    """log mean exp(-t ||x_i - x_j||^2) over distinct pairs of unit vectors; lower is more even.

    Args:
        x: Unit vectors [n, d], at least two.
        t: How fast a pair's weight falls with its distance.

    Returns:
        A scalar, at most 0.

    Example:
        >>> import dcfl, torch
        >>> round(dcfl.evaluation.uniformity(torch.eye(2)).item(), 4)
        -4.0
    """
    if len(x) < 2:
        raise ValueError("uniformity needs at least two points")
    squared = torch.pdist(x if x.dtype == torch.float64 else x.float()).square()
    return torch.logsumexp(-t * squared, dim=0) - math.log(len(squared))


@torch.no_grad()
def similarity_histogram(
    embeddings: Tensor, labels: Tensor, bins: int = 200
) -> tuple[Tensor, Tensor]:
    """How the cosines of all unordered pairs spread over equal bins on [-1, 1].

    Works in blocks: 10,000 embeddings have 50 million pairs.

    Args:
        embeddings: [n, d]; they are normalised inside.
        labels: [n].
        bins: How many.

    Returns:
        Two int64 tensors of counts [bins]: pairs of one class, and pairs of different classes.

    Example:
        >>> import dcfl, torch
        >>> z, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> intra, inter = dcfl.evaluation.similarity_histogram(z, y, bins=4)
        >>> intra.tolist(), inter.tolist()
        ([0, 0, 0, 1], [2, 0, 0, 0])
    """
    unit = F.normalize(embeddings.float(), dim=1)
    intra = torch.zeros(bins, dtype=torch.int64, device=unit.device)
    inter = torch.zeros_like(intra)
    block = 1000
    for top in range(0, len(unit), block):
        rows, row_labels = unit[top : top + block], labels[top : top + block]
        for left in range(top, len(unit), block):
            columns, column_labels = unit[left : left + block], labels[left : left + block]
            bin_of = ((rows @ columns.T + 1) * (bins / 2)).long().clamp(0, bins - 1)
            same = row_labels[:, None] == column_labels[None, :]
            pair = torch.ones_like(same).triu(1) if left == top else torch.ones_like(same)
            intra += torch.bincount(bin_of[pair & same], minlength=bins)
            inter += torch.bincount(bin_of[pair & ~same], minlength=bins)
    return intra, inter
