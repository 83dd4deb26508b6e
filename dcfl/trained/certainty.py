"""How sure an accuracy is, and the difference between two models on the same pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dcfl.scores import Interval, Z, wilson

RESAMPLES = 5000
Numbers = NDArray[np.float64]


def accuracy_interval(right: Tensor, groups: Tensor | None) -> Interval:
    """`right`: one bool per image. Images of one group, such as a patient's, are no independent
    witnesses: then whole groups are drawn again and again (bootstrap)."""
    if groups is None:
        return wilson(float(right.sum()), len(right))
    sums, sizes = _by_group(right.double(), groups)
    if sums.sum() in (0, sizes.sum()):  # nothing varies: as if a group were one image
        return wilson(len(sizes) * float(sums.sum() / sizes.sum()), len(sizes))
    return _resampled(sums, sizes)


@dataclass(frozen=True)
class PairedModels:
    """A second model less a first one, image by image."""

    images: int
    groups: int | None
    only_first: int  # images that the first alone gets right
    only_second: int
    difference: float  # of accuracies, in percentage points
    interval: Interval
    p_value: float
    test: str  # which

    @classmethod
    def of(cls, first: Tensor, second: Tensor, groups: Tensor | None) -> PairedModels:
        """Which images each gets right. Without groups McNemar's exact test, and the interval of
        Bonett and Price (2012); with them, whole groups are drawn again, or change signs."""
        from scipy.stats import binomtest  # type: ignore[import-untyped]  # a third of a second

        won, lost = int((second & ~first).sum()), int((first & ~second).sum())
        change = second.double() - first.double()
        difference = 100 * float(change.mean())
        if groups is None:
            interval, test = _bonett_price(won, lost, len(first)), "McNemar's exact test"
            p_value = float(binomtest(won, won + lost).pvalue) if won + lost else 1.0
            return cls(len(first), None, lost, won, difference, interval, p_value, test)
        sums, sizes = _by_group(change, groups)
        interval, test = _resampled(sums, sizes), "whole groups change signs"
        if not won + lost:  # nothing varies: as if a group were one image
            interval = _bonett_price(0, 0, len(sums))
        p_value = _sign_flips(sums)
        return cls(len(first), len(sums), lost, won, difference, interval, p_value, test)


def number_of_groups(groups: Tensor) -> int:
    return len(np.unique(groups.cpu().numpy()))


def _by_group(values: Tensor, groups: Tensor) -> tuple[Numbers, Numbers]:
    """The sum and the number of each group's."""
    _, which = np.unique(groups.cpu().numpy(), return_inverse=True)
    counts = np.bincount(which).astype(np.float64)
    return np.bincount(which, values.numpy()).astype(np.float64), counts


def _resampled(sums: Numbers, sizes: Numbers) -> Interval:
    generator, count = np.random.default_rng(0), len(sums)  # the same for the same answers
    draws = (generator.integers(count, size=count) for _ in range(RESAMPLES))
    shares = [100 * sums[drawn].sum() / sizes[drawn].sum() for drawn in draws]
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(low), float(high)


def _sign_flips(sums: Numbers) -> float:
    """How often a difference as large comes about if each group may as well favour the other."""
    generator = np.random.default_rng(0)
    totals = [generator.choice((-1.0, 1.0), len(sums)) @ sums for _ in range(RESAMPLES)]
    as_large = np.abs(totals) >= abs(sums.sum()) - 1e-9
    return float((as_large.sum() + 1) / (RESAMPLES + 1))


def _bonett_price(won: int, lost: int, images: int) -> Interval:
    gain, loss = (won + 1) / (images + 2), (lost + 1) / (images + 2)
    reach = Z * math.sqrt((gain + loss - (gain - loss) ** 2) / (images + 2))
    return 100 * max(gain - loss - reach, -1.0), 100 * min(gain - loss + reach, 1.0)
