"""The points that a search tries: a grid, drawn at random, proposed by Optuna, or neighbours of the
best, of which every method has as many.

Optuna also ends trials whose curve is bad. It keeps nothing itself: the points are in a file, the
curves in the run folders, so the same
command goes on after a kill.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import numpy as np

from dcfl.comparisons.space import Choices, Dimension, Point, Space, frozen, plain
from dcfl.comparisons.trials import QUANTITIES, By, Trial
from dcfl.errors import ConfigError, RunFolderError
from dcfl.runs.rows import RoundRow
from dcfl.system.storage import read_whole, strict_json, write_whole
from dcfl.system.wording import install_command

Kind = Literal["grid", "random", "tune"]
ATTEMPTS = 50  # to draw a point that is new


@dataclass(frozen=True)
class Search:
    kind: Kind = "grid"
    count: int = 0  # points, unless all of a grid
    seed: int = 0  # of what is drawn

    @classmethod
    def named(cls, text: str) -> Search:
        """The search that `grid`, `random 20` or `tune 20` names."""
        found = re.fullmatch(r"grid|(random|tune) ([1-9]\d{0,5})", text)
        if found is None:
            raise ConfigError(f"search={text!r}: must be 'grid', 'random 20' or 'tune 20'")
        return cls("tune" if found[1] == "tune" else "random", int(found[2])) if found[1] else cls()

    def points(self, space: Space) -> list[Point]:
        """All points. Optuna's are not known beforehand: as many that cost about the same."""
        return grid(space) if self.kind == "grid" else list(drawn(space, self.count, self.seed))


def key_of(point: Point) -> str:
    """A text that equal points share."""
    return repr(sorted(point.items()))


def grid(space: Space) -> list[Point]:
    """Every combination; the first key changes slowest."""
    for one in space.ranges:
        raise ConfigError(
            f"{one} is a range, of which a grid cannot try every number: add --random 20 or "
            f"--tune 20, or list values, {one.key}={plain(one.low)},{plain(one.high)}"
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


# Optuna -------------------------------------------------------------------------------------------

POINTS = "tune.json"
# No trial is ended before so many have finished, nor in the first third of its rounds.
FINISHED_FIRST, SPARED = 4, 3
# Optuna warns of what it calls experimental, and of values that were reported twice.
quietly = partial(warnings.catch_warnings, action="ignore")


def optuna() -> ModuleType:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise ConfigError(f"--tune needs optuna: {install_command('tune')}") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Tuner:
    def __init__(self, space: Space, search: Search, rounds: int, by: By, folder: Path) -> None:
        self._optuna = optuna()
        self._space, self._search, self._by = space, search, by
        self._memory = PointsFile(folder / POINTS, space)
        self._asked: dict[int, Any] = {}  # Optuna's trials, by our numbers
        self._known: set[str] = set()
        pruners = self._optuna.pruners
        with quietly():
            self._study = self._optuna.create_study(
                direction="maximize",
                pruner=pruners.MedianPruner(FINISHED_FIRST, rounds // SPARED),
            )

    def next(self, number: int) -> Point | None:
        """The point of this trial: as it was before an interruption, or a new one."""
        if number < len(self._memory.points):
            point = self._memory.points[number]
            with quietly():
                self._study.enqueue_trial(self._as_parameters(point))
                self._asked[number] = self._study.ask(self._distributions())
        elif number >= self._search.count or (found := self._new_point(number)) is None:
            return None
        else:
            point = found
            self._memory.add(point)
        self._known.add(key_of(point))
        return point

    def report(self, number: int, row: RoundRow) -> bool:
        """Whether the curve is so bad that the trial should end."""
        value = row[_FIELDS[self._by]]
        if value is None:
            return False
        trial = self._asked[number]
        with quietly():
            trial.report(value, row.round)
            return bool(trial.should_prune())

    def end(self, trial: Trial) -> None:
        """Learn from a trial that finished, diverged or was ended."""
        asked, states = self._asked[trial.number], self._optuna.trial.TrialState
        with quietly():
            for run in (cell.run for cell in trial.cells[:1]):
                for row in run.rounds if run else ():
                    value = row[_FIELDS[self._by]]
                    if value is not None:
                        asked.report(value, row.round)  # a second report is not counted
            if trial.state == "finished":
                self._study.tell(asked, trial.score(self._by))
            else:  # worse than all that finished
                self._study.tell(asked, state=states.PRUNED)

    def _new_point(self, number: int) -> Point | None:
        """A point that is new; None if a small space has been tried whole."""
        for attempt in range(OPTUNA_ATTEMPTS):
            # A sampler of its own for each trial: it does not depend on what was drawn before an
            # interruption.
            seeds = np.random.SeedSequence([self._search.seed, number, attempt])
            startup = max(FINISHED_FIRST, min(10, self._search.count // 3))
            with quietly():
                self._study.sampler = self._optuna.samplers.TPESampler(
                    seed=int(seeds.generate_state(1)[0]), n_startup_trials=startup
                )
                asked = self._study.ask(self._distributions())
                point = self._as_point(asked.params)
                if key_of(point) not in self._known:
                    self._asked[number] = asked
                    return point
                self._study.tell(asked, state=self._optuna.trial.TrialState.FAIL)
        return None

    def _distributions(self) -> dict[str, Any]:
        return {one.key: self._distribution(one) for one in self._space.dimensions}

    def _distribution(self, dimension: Dimension) -> Any:
        kinds = self._optuna.distributions
        if isinstance(dimension, Choices):  # by position: a value may be a list
            return kinds.CategoricalDistribution(list(range(len(dimension.values))))
        if dimension.whole:
            return kinds.IntDistribution(int(dimension.low), int(dimension.high), dimension.log)
        return kinds.FloatDistribution(dimension.low, dimension.high, dimension.log)

    def _as_point(self, parameters: dict[str, Any]) -> Point:
        return {
            one.key: one.values[parameters[one.key]]
            if isinstance(one, Choices)
            else one.within(parameters[one.key])
            for one in self._space.dimensions
        }

    def _as_parameters(self, point: Point) -> dict[str, Any]:
        return {
            one.key: one.values.index(point[one.key])
            if isinstance(one, Choices)
            else point[one.key]
            for one in self._space.dimensions
        }


OPTUNA_ATTEMPTS = 20  # to get a point from Optuna that is new
_FIELDS = {**QUANTITIES, "final": "accuracy"}


class PointsFile:
    """The points that Optuna has proposed, in order."""

    def __init__(self, path: Path, space: Space) -> None:
        self._path, self._space = path, space.described()
        self.points: list[Point] = []
        if path.is_file():
            self.points = self._read(space)

    def add(self, point: Point) -> None:
        self.points.append(point)
        content = {"space": self._space, "points": self.points}
        write_whole(self._path, strict_json(content, indent=1) + "\n")

    def _read(self, space: Space) -> list[Point]:
        try:
            content = json.loads(read_whole(self._path))
            before, points = list(map(str, content["space"])), list(content["points"])
            if before == self._space:
                return [
                    {one.key: one.known(frozen(point[one.key])) for one in space.dimensions}
                    for point in points
                ]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFolderError(f"{self._path}: not as it was written ({error})") from error
        raise RunFolderError(
            f"{self._path.parent} holds a search over {'; '.join(before)}: choose another folder "
            f"with --out"
        )
