"""Which points a sweep tries: all of a grid, or some that are drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dcfl.errors import ConfigError
from dcfl.studies.sweep.space import Point, Space, plain

Kind = Literal["grid", "random", "tune"]
MOST_POINTS = 10_000  # of a grid; more are a mistake
ATTEMPTS = 50  # to draw a point that is new


@dataclass(frozen=True)
class Search:
    kind: Kind = "grid"
    count: int = 0  # points, unless all of a grid
    seed: int = 0  # of what is drawn

    @classmethod
    def named(cls, text: str) -> Search:
        """From `grid`, `random 20` or `tune 20`."""
        found = re.fullmatch(r"grid|(random|tune) ([1-9]\d{0,5})", text)
        if found is None:
            raise ConfigError(f"search={text!r}: must be 'grid', 'random 20' or 'tune 20'")
        return cls("tune" if found[1] == "tune" else "random", int(found[2])) if found[1] else cls()

    def points(self, space: Space) -> list[Point]:
        """All of them. Optuna's are not known beforehand: as many that cost about the same."""
        return grid(space) if self.kind == "grid" else list(drawn(space, self.count, self.seed))


def key_of(point: Point) -> str:
    """Equal for equal points."""
    return repr(sorted(point.items()))


def grid(space: Space) -> list[Point]:
    """Every combination; the first key changes slowest."""
    for one in space.ranges:
        raise ConfigError(
            f"{one} is a range, of which a grid cannot try every number: add --random 20 or "
            f"--tune 20, or list values, {one.key}={plain(one.low)},{plain(one.high)}"
        )
    size = math.prod(len(dimension.ends) for dimension in space.dimensions)
    if size > MOST_POINTS:
        raise ConfigError(f"a grid of {size:,} points: try fewer values, or --random 100")
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
