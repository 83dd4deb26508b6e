"""The points that are tried: a grid, drawn at random, or neighbours of the best, of which every
method has as many."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeVar

import numpy as np

from dcfl.comparisons.space import Point, Space, plain
from dcfl.errors import ConfigError

Kind = Literal["grid", "random"]
ATTEMPTS = 50  # to draw a point that is new


@dataclass(frozen=True)
class Search:
    kind: Kind = "grid"
    count: int = 0  # points, unless all of a grid
    seed: int = 0  # of what is drawn

    @classmethod
    def named(cls, text: str) -> Search:
        """The search that `grid` or `random 20` names."""
        found = re.fullmatch(r"grid|random ([1-9]\d{0,5})", text)
        if found is None:
            raise ConfigError(f"search={text!r}: must be 'grid' or 'random 20'")
        return cls("random", int(found[1])) if found[1] else cls()

    def points(self, space: Space) -> list[Point]:
        """All points."""
        return grid(space) if self.kind == "grid" else list(drawn(space, self.count, self.seed))


def key_of(point: Point) -> str:
    """A text that equal points share."""
    return repr(sorted(point.items()))


def grid(space: Space) -> list[Point]:
    """Every combination; the first key changes slowest."""
    for one in space.ranges:
        raise ConfigError(
            f"{one} is a range, of which a grid cannot try every number: add --random 20, "
            f"or list values, {one.key}={plain(one.low)},{plain(one.high)}"
        )
    points: list[Point] = [{}]
    for dimension in space.dimensions:
        points = [{**point, dimension.key: value} for point in points for value in dimension.ends]
    return points


def drawn(space: Space, count: int, seed: int) -> Iterator[Point]:
    """`count` different points, or as many as there are. More points begin with the same ones."""
    seen = set()
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        for _ in range(ATTEMPTS):
            shares = generator.random(len(space.dimensions))
            point = {
                dimension.key: dimension.at(float(share))
                for dimension, share in zip(space.dimensions, shares, strict=True)
            }
            if key_of(point) not in seen:
                seen.add(key_of(point))
                yield point
                break


# Equal budgets ------------------------------------------------------------------------------------

Exponents = tuple[float, ...]  # one for each axis
Made = TypeVar("Made")


@dataclass(frozen=True)
class Axis:
    """A key of the config that is tried at start * factor ** exponent."""

    key: str
    start: float = 1.0
    factor: float = 10.0
    first: Sequence[int] = (-1, 0, 1)  # the exponents to begin with

    def value(self, exponent: float) -> float:
        return float(f"{self.start * self.factor**exponent:.3g}") if exponent else self.start


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
        best, step = max(known, key=known.__getitem__), 1.0
        while True:
            for axis, sign in product(range(len(best)), (-1, 1)):
                near = _moved(best, axis, best[axis] + sign * step)
                if self._new(near, scores):
                    return near
            step /= 2

    def _new(self, point: Exponents, scores: Collection[Exponents]) -> bool:
        return point not in scores and self.possible(self.settings(point))


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
