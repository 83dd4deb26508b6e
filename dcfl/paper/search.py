"""A search with equal budgets: as many trials for every row, on the same kept-back images.

All rows begin with the same powers of a factor. Each further trial is a neighbour of the best so
far, down and up on each axis in turn: beyond what was tried if the best lies at its edge. Once all
neighbours are known, steps are halved. What is next follows from the finished cells alone, so that
a search can be stopped and taken up anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from dcfl.config import Tables, merge

Point = tuple[float, ...]  # an exponent, or a value, for each axis


@dataclass(frozen=True)
class Axis:
    """A key of the config that is tried at start * factor ** exponent."""

    key: str
    start: float = 1.0
    factor: float = 10.0
    first: Sequence[int] = (-1, 0, 1)  # the exponents to begin with

    def value(self, exponent: float) -> float:
        return float(f"{self.start * self.factor**exponent:.3g}")


@dataclass(frozen=True)
class SearchedRow:
    row: str
    method: str
    axes: Sequence[Axis]
    changes: Tables = field(default_factory=dict)  # in all its trials

    def tables(self, point: Point) -> Tables:
        tables = self.changes
        for axis, value in zip(self.axes, self._values(point), strict=True):
            table, _, key = axis.key.partition(".")
            tables = merge(tables, {table: {key: value}})
        return tables

    def label(self, point: Point) -> str:
        return ", ".join(f"{value:g}" for value in self._values(point))

    def _values(self, point: Point) -> list[float]:
        return [axis.value(exponent) for axis, exponent in zip(self.axes, point, strict=True)]

    def next_point(self, scores: Mapping[Point, float | None]) -> Point | None:
        """What to try after these. A score that is not known yet is None; then only those come that
        a row begins with, and None after them."""
        for first in product(*(map(float, axis.first) for axis in self.axes)):
            if first not in scores:
                return first
        known = {point: score for point, score in scores.items() if score is not None}
        if len(known) < len(scores):
            return None
        best, step = max(known, key=known.__getitem__), 1.0
        while True:
            for axis, sign in product(range(len(best)), (-1, 1)):
                near = _moved(best, axis, best[axis] + sign * step)
                if near not in scores:
                    return near
            step /= 2


def values_of(label: str) -> Point:
    """The values of a trial, from its label."""
    return tuple(map(float, label.split(", ")))


def edges(best: Point, tried: Collection[Point]) -> list[int]:
    """The axes on which nothing was tried on one side of the best, the others being equal."""
    found = []
    for axis, value in enumerate(best):
        line = [one[axis] for one in tried if one == _moved(best, axis, one[axis])]
        if value in (min(line), max(line)):
            found.append(axis)
    return found


def _moved(point: Point, axis: int, to: float) -> Point:
    return (*point[:axis], to, *point[axis + 1 :])
