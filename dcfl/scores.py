"""Counts of a classifier's answers, and all that follows from them.

Clients or sites count their own images; the sum of their counts is what one count of all images
would have been, to the last bit and in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dcfl.client import evaluating
from dcfl.data.augment import Preparation
from dcfl.data.client_data import clean_batches
from dcfl.data.datasets import Images
from dcfl.system.transfers import to_host

# Of a class's log-odds x = log(p / (1 - p)), in equal steps of asinh(x / 2) from -8 to 8: a 32nd
# wide in the middle and a 64th of x further out, to x = 3000. Probabilities crowd at 0 and 1, where
# equal bins of them would tell nothing apart.
ODDS_BINS, ODDS_SCALE, ODDS_REACH = 1024, 2, 8
CONFIDENCE_BINS = 15  # as in Guo et al., "On Calibration of Modern Neural Networks", ICML 2017
# Real numbers are rounded to multiples of this before they are added. Their sums are then exact
# in float64 up to 2^29, so that they depend neither on the order nor on who added what.
STEP = 2.0**-24
LARGEST_LOSS = 2.0**16  # of one image; a greater one counts as this
Z = 1.959963984540054  # the normal quantile of 97.5 %: intervals are of 95 %
Interval = tuple[float, float]  # percent, or percentage points


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """What a classifier answered on some images, as counts that can be added with `+`.

    Accuracy, recall, precision, F1 and calibration error are percentages; AUC is between 0 and 1.
    A class without images has NaN and is left out of every mean: see `absent`.
    """

    confusion: Tensor  # images [class, answer]
    odds: Tensor  # images of other classes and own ones, by the odds of a class [class, 2, bin]
    confidence: Tensor  # by the answer's probability: images, its sum, right answers [3, bin]
    total_loss: float  # cross-entropy, summed over the images

    @classmethod
    def none(cls, classes: int) -> Scores:
        """The scores of no image."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        bins = zeros(classes, 2, ODDS_BINS)
        return cls(zeros(classes, classes), bins, zeros(3, CONFIDENCE_BINS), 0.0)

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Scores:
        """The scores of a batch: logits [n, classes] and labels [n], on the CPU.

        Raises ValueError if a logit is not finite.
        """
        if not logits.isfinite().all():
            raise ValueError("logits that are not finite")
        classes = logits.shape[1]
        logs = logits.double().log_softmax(dim=1)
        answers = logits.argmax(dim=1)
        pairs = torch.bincount(labels * classes + answers, minlength=classes**2)
        losses = _stepped(-logs.gather(1, labels[:, None]).clamp(min=-LARGEST_LOSS))
        return cls(
            pairs.reshape(classes, classes).double(),
            _binned_odds(logs, labels),
            _binned_confidence(logs.amax(dim=1).exp(), answers == labels),
            float(losses.sum()),
        )

    def __add__(self, other: Scores) -> Scores:
        if other.classes != self.classes:
            raise ValueError(f"scores of {self.classes} and of {other.classes} classes")
        return Scores(*(own + its for own, its in zip(self._parts, other._parts, strict=True)))

    def weighted(self, weight: float) -> Scores:
        """The scores as if every image were there `weight` times."""
        return Scores(*(part * weight for part in self._parts))

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.confusion, self.odds, self.confidence, self.total_loss

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scores):
            return NotImplemented
        pairs = zip(self.tensors.values(), other.tensors.values(), strict=True)
        return all(torch.equal(own, its) for own, its in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Scores({self.images:,g} images, accuracy {self.accuracy:.2f} %)"

    # As named tensors, which cross the wire

    @property
    def tensors(self) -> dict[str, Tensor]:
        loss = torch.tensor([self.total_loss], dtype=torch.float64)
        names = (field.name for field in fields(self))
        return dict(zip(names, (*self._parts[:-1], loss), strict=True))

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], classes: int) -> Scores:
        """Scores that come from elsewhere: ValueError if no images can have such counts."""
        expected = cls.none(classes).tensors
        if {name: tensor.shape for name, tensor in tensors.items()} != {
            name: tensor.shape for name, tensor in expected.items()
        }:
            raise ValueError(f"scores that are not of {classes} classes")
        if any(tensor.dtype != torch.float64 for tensor in tensors.values()):
            raise ValueError("scores that are not float64")
        if not all(((count >= 0) & (count <= 2.0**53)).all() for count in tensors.values()):
            raise ValueError("scores that are not counts")
        rest = {name: tensor for name, tensor in tensors.items() if name != "total_loss"}
        scores = cls(**rest, total_loss=float(tensors["total_loss"]))
        if not scores._adds_up():
            raise ValueError("scores that do not add up")
        return scores

    # The images

    @property
    def classes(self) -> int:
        return len(self.confusion)

    @property
    def images(self) -> float:
        """How many; not whole if they are weighted."""
        return float(self.confusion.sum())

    @cached_property
    def images_by_class(self) -> Tensor:
        return self.confusion.sum(dim=1)

    @property
    def absent(self) -> list[int]:
        """The classes without images, which no mean includes."""
        return [label for label, count in enumerate(self.images_by_class.tolist()) if not count]

    # The answers

    @property
    def accuracy(self) -> float:
        """The share of right answers, percent."""
        return _share(self.confusion.trace(), self.confusion.sum())

    @cached_property
    def recall(self) -> Tensor:
        """The share of each class's images that were recognised, percent."""
        return 100 * self.confusion.diag() / self.images_by_class

    @cached_property
    def precision(self) -> Tensor:
        """The share of right answers among those that name a class, percent; NaN if none does."""
        return self._present(100 * self.confusion.diag() / self.confusion.sum(dim=0))

    @cached_property
    def f1(self) -> Tensor:
        """The harmonic mean of each class's precision and recall, percent."""
        named_or_shown = self.confusion.sum(dim=0) + self.images_by_class
        return self._present(200 * self.confusion.diag() / named_or_shown)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes, percent."""
        return _mean(self.recall)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes, percent."""
        return _mean(self.f1)

    @property
    def loss(self) -> float:
        """The mean cross-entropy."""
        return self.total_loss / self.images if self.images else torch.nan

    # The probabilities

    @cached_property
    def auc(self) -> Tensor:
        """Of each class against the rest: the share of pairs of an image of the class and one of
        another in which the first gets the higher odds. Two in one bin count as half a pair."""
        others, own = self.odds[:, 0], self.odds[:, 1]
        lower = others.cumsum(dim=1) - others
        return (own * (lower + others / 2)).sum(dim=1) / (own.sum(dim=1) * others.sum(dim=1))

    @cached_property
    def auc_error(self) -> Tensor:
        """How far `auc` of each class can be from that of unbinned odds, at most: half the share of
        pairs in one bin."""
        others, own = self.odds[:, 0], self.odds[:, 1]
        return (own * others).sum(dim=1) / (2 * own.sum(dim=1) * others.sum(dim=1))

    @property
    def mean_auc(self) -> float:
        return _mean(self.auc)

    @property
    def mean_auc_error(self) -> float:
        """How far `mean_auc` can be from that of unbinned odds, at most."""
        return _mean(self.auc_error)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error, percent: how far confidence and accuracy are apart in a
        bin of confidence, on average over the images."""
        images, confidence, right = self.confidence
        return _share((confidence - right).abs().sum(), images.sum())

    @property
    def reliability(self) -> tuple[Tensor, Tensor]:
        """The mean confidence and the accuracy in each bin of confidence, percent; NaN if empty."""
        images, confidence, right = self.confidence
        return 100 * confidence / images, 100 * right / images

    def _present(self, values: Tensor) -> Tensor:
        return values.where(self.images_by_class > 0, torch.nan)

    def _adds_up(self) -> bool:
        by_class, all_images = self.images_by_class, self.confusion.sum()
        images, confidence, right = self.confidence
        edges = torch.linspace(0, 1, CONFIDENCE_BINS + 1, dtype=torch.float64)
        slack = STEP * images + 1e-6
        return (
            torch.allclose(self.odds.sum(dim=2), torch.stack([all_images - by_class, by_class], 1))
            and torch.allclose(images.sum(), all_images)
            and torch.allclose(right.sum(), self.confusion.trace())
            and bool((right <= images + 1e-6).all())
            and bool((confidence >= edges[:-1] * images - slack).all())
            and bool((confidence <= edges[1:] * images + slack).all())
            and self.total_loss <= LARGEST_LOSS * float(all_images)
        )


@torch.inference_mode()
def scores_of(model: nn.Module, images: Images, preparation: Preparation, classes: int) -> Scores:
    """The scores of a model on images, without augmentation, in evaluation mode.

    Raises ValueError if a logit is not finite.
    """
    scores = Scores.none(classes)
    with evaluating(model):
        for batch in clean_batches(images, preparation, model):
            logits = model(batch.images).logits.float()
            here = to_host({"logits": logits, "labels": batch.labels})
            scores += Scores.of(here["logits"], here["labels"])
    return scores


def wilson(right: float, images: float) -> Interval:
    """Of a share of independent images, percent (Wilson, 1927)."""
    share, spread = right / images, Z * Z / images
    middle = (share + spread / 2) / (1 + spread)
    reach = Z / (1 + spread) * math.sqrt(share * (1 - share) / images + spread / images / 4)
    return 100 * max(middle - reach, 0.0), 100 * min(middle + reach, 1.0)


def _binned_odds(logs: Tensor, labels: Tensor) -> Tensor:
    """`logs`: of the probabilities [n, classes], float64."""
    count, classes = logs.shape
    place_in_range = torch.asinh(_log_odds(logs) / ODDS_SCALE) / (2 * ODDS_REACH) + 0.5
    bins = (place_in_range * ODDS_BINS).floor()
    own = torch.zeros(count, classes, dtype=torch.int64).scatter_(1, labels[:, None], 1)
    row = 2 * torch.arange(classes) + own
    place = row * ODDS_BINS + bins.clamp(0, ODDS_BINS - 1).long()
    counts = torch.bincount(place.reshape(-1), minlength=classes * 2 * ODDS_BINS)
    return counts.reshape(classes, 2, ODDS_BINS).double()


def _log_odds(logs: Tensor) -> Tensor:
    top = logs.argmax(dim=1, keepdim=True)
    # 1 - p loses its digits where p is near 1: there the others' probabilities are added up.
    rest_of_top = logs.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return logs - torch.log(-torch.expm1(logs)).scatter(1, top, rest_of_top)


def _binned_confidence(confidences: Tensor, right: Tensor) -> Tensor:
    bins = (confidences * CONFIDENCE_BINS).floor().clamp(max=CONFIDENCE_BINS - 1).long()
    kinds = [torch.ones_like(confidences), _stepped(confidences), right.double()]
    return torch.stack(
        [torch.bincount(bins, weights=kind, minlength=CONFIDENCE_BINS) for kind in kinds]
    )


def _stepped(values: Tensor) -> Tensor:
    return (values / STEP).round() * STEP


def _share(part: Tensor, whole: Tensor) -> float:
    return float(100 * part / whole)


def _mean(values: Tensor) -> float:
    """The mean of those that are not NaN; NaN if there are none."""
    return float(values.nanmean())
