"""What mattered most: how much of the difference between trials goes with each key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from dcfl.studies.sweep.space import Dimension, Range, plain

MOST_PARTS, IN_EACH = 4, 3  # parts of a range, and trials in each of them


@dataclass(frozen=True)
class Level:
    """A value of a key, or a part of its range."""

    label: str
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.scores)


@dataclass(frozen=True)
class Importance:
    key: str
    levels: tuple[Level, ...]  # those with trials

    @property
    def share(self) -> float:
        """Of the variance of the scores that goes with this key alone, from 0 to 1, corrected for
        what as many levels would explain by chance (epsilon squared). NaN if there are too few
        trials to say."""
        scores = [score for level in self.levels for score in level.scores]
        spare = len(scores) - len(self.levels)  # degrees of freedom within levels
        mean = fmean(scores) if scores else math.nan
        total = sum((score - mean) ** 2 for score in scores)
        if len(self.levels) < 2 or spare < 2 or total == 0:
            return math.nan
        within = sum((score - level.mean) ** 2 for level in self.levels for score in level.scores)
        explained = total - within - (len(self.levels) - 1) * within / spare
        return max(explained, 0.0) / total

    @property
    def best(self) -> Level:
        return max(self.levels, key=lambda level: level.mean)


def importances(
    dimensions: Sequence[Dimension], points: Sequence[dict[str, Any]], scores: Sequence[float]
) -> list[Importance]:
    """One per key, the most important first."""
    found = [
        Importance(
            dimension.key, levels(dimension, [point[dimension.key] for point in points], scores)
        )
        for dimension in dimensions
    ]
    return sorted(found, key=lambda one: -one.share if not math.isnan(one.share) else 1.0)


def levels(
    dimension: Dimension, values: Sequence[Any], scores: Sequence[float]
) -> tuple[Level, ...]:
    different = list(dict.fromkeys(values))
    parts = max(2, min(MOST_PARTS, len(values) // IN_EACH))
    if isinstance(dimension, Range) and len(different) > parts:
        return _parts(values, scores, parts)
    if isinstance(dimension, Range):
        different.sort()
    else:
        different = [value for value in dimension.values if value in different]
    return tuple(
        Level(
            plain(one),
            tuple(score for value, score in zip(values, scores, strict=True) if value == one),
        )
        for one in different
    )


def _parts(values: Sequence[float], scores: Sequence[float], count: int) -> tuple[Level, ...]:
    """Equally many trials in each."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    parts = np.array_split(np.array(order), count)
    return tuple(
        Level(
            " to ".join(dict.fromkeys(plain(values[index]) for index in (part[0], part[-1]))),
            tuple(scores[index] for index in part),
        )
        for part in parts
    )
