"""Searches with equal budgets: neighbours of the best so far, of which every method has as many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from dcfl.comparisons.space import Point

Exponents = tuple[float, ...]  # one for each axis
Made = TypeVar("Made")


@dataclass(frozen=True)
class Axis:
    """A key of the config that is tried at start * factor ** exponent."""

    key: str
    start: float = 1.0  # or a whole number
    factor: float = 10.0
    first: Sequence[int] = (-1, 0, 1)  # the exponents to begin with

    def value(self, exponent: float) -> float:
        """A whole number, if the start is one."""
        found = float(f"{self.start * self.factor**exponent:.3g}") if exponent else self.start
        return round(found) if isinstance(self.start, int) else found


@dataclass(frozen=True)
class NeighbourSearch:
    """All methods begin with the same powers of a factor. Each further trial is a neighbour of the
    best so far, down and up on each axis in turn: beyond what was tried if the best lies at its
    edge. Once all neighbours are known, steps are halved. What is next follows from the finished
    trials alone, so that a search can be stopped and taken up anywhere."""

    axes: Sequence[Axis]
    possible: Callable[[Point], bool] = lambda settings: True

    def tried(
        self,
        trials: int,
        trial_of: Callable[[Point], Made],
        score: Callable[[Made], float | None],
    ) -> dict[Exponents, Made]:
        """So many trials, or those that can be known before others have a score."""
        made: dict[Exponents, Made] = {}
        scores: dict[Exponents, float | None] = {}
        while len(made) < trials and (point := self.next_point(scores)) is not None:
            made[point] = trial_of(self.settings(point))
            scores[point] = score(made[point])
        return made

    def settings(self, point: Exponents) -> Point:
        return {a.key: a.value(exponent) for a, exponent in zip(self.axes, point, strict=True)}

    def next_point(self, scores: Mapping[Exponents, float | None]) -> Exponents | None:
        """What to try after these. A score that is not known yet is None; then only those come that
        a search begins with, and None after them."""
        for first in product(*(map(float, axis.first) for axis in self.axes)):
            if self._new(first, scores):
                return first
        known = {point: score for point, score in scores.items() if score is not None}
        if not known or len(known) < len(scores):
            return None
        best, step = best_of(known), 1.0
        while True:
            for axis, sign in product(range(len(best)), (-1, 1)):
                near = _moved(best, axis, best[axis] + sign * step)
                if self._new(near, scores):
                    return near
            step /= 2

    def _new(self, point: Exponents, scores: Collection[Exponents]) -> bool:
        settings = self.settings(point)
        return settings not in map(self.settings, scores) and self.possible(settings)


def best_of(scores: Mapping[Exponents, float]) -> Exponents:
    """The highest score; of several, that of the point which is nearest to the start."""
    return max(scores, key=lambda point: (scores[point], -sum(map(abs, point))))


def edges(best: Exponents, tried: Collection[Exponents]) -> list[int]:
    """The axes on which nothing was tried on one side of the best, the others being equal."""
    found = []
    for axis, value in enumerate(best):
        line = [one[axis] for one in tried if one == _moved(best, axis, one[axis])]
        if value in (min(line), max(line)):
            found.append(axis)
    return found


def _moved(point: Exponents, axis: int, to: float) -> Exponents:
    return (*point[:axis], to, *point[axis + 1 :])
