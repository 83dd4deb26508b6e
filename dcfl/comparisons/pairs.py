"""Methods that were trained on the same task, compared seed by seed: with one, or all pairs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from statistics import fmean, stdev
from typing import Any, TypeVar

CONFIDENCE = 0.95  # of intervals
LEVEL = 1 - CONFIDENCE  # a smaller p-value tells two methods apart
SAME = 1e-6  # points; smaller differences are rounding
SMALL = 0.1  # a p-value that is worth a word, though it tells nothing apart
CLOSE = 2.0  # points; two methods are not close if they may differ by more
FEWEST_AGREEING = 3  # seeds; two have the same winner by chance every second time

Interval = tuple[float, float]
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Spread:
    """The mean of a few values and their sample standard deviation (None for a single value)."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        known = not any(map(math.isnan, values))  # stdev fails on NaN
        return cls(fmean(values), stdev(values) if len(values) > 1 and known else None, len(values))

    def __format__(self, sign: str) -> str:
        """Supports `f"{spread}"` and, with a sign in front, `f"{spread:+}"`."""
        deviation = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:{sign}.2f}{deviation}"


@dataclass(frozen=True)
class Paired:
    """One method minus another, for each seed that both have."""

    differences: tuple[float, ...]

    @classmethod
    def of(cls, mine: Mapping[Name, float], theirs: Mapping[Name, float]) -> Paired | None:
        """Pairs scores by seed; None if no seed has a number on both sides."""
        differences = [mine[seed] - theirs[seed] for seed in mine if seed in theirs]
        known = tuple(difference for difference in differences if math.isfinite(difference))
        return cls(known) if known else None

    def __neg__(self) -> Paired:
        return Paired(tuple(-difference for difference in self.differences))

    @property
    def seeds(self) -> int:
        return len(self.differences)

    @cached_property
    def spread(self) -> Spread:
        return Spread.of(self.differences)

    @property
    def wins(self) -> int:
        return sum(difference > SAME for difference in self.differences)

    @property
    def losses(self) -> int:
        return sum(difference < -SAME for difference in self.differences)

    @property
    def ties(self) -> int:
        return self.seeds - self.wins - self.losses

    @property
    def one_sided(self) -> bool:
        """Have all of three seeds or more the same winner?"""
        return self.seeds >= FEWEST_AGREEING and self.seeds in (self.wins, self.losses)

    @property
    def leans(self) -> bool:
        """Is it likely, though not shown, that one is better?"""
        return self.one_sided and self.p_value is not None and self.p_value < SMALL

    @property
    def bound(self) -> float | None:
        """The two differ by no more than this: the farther end of the interval, which is what two
        one-sided t-tests at 2.5 % show (equivalence, TOST). None without an interval."""
        return None if self.interval is None else max(map(abs, self.interval))

    @property
    def close(self) -> bool:
        return self.bound is not None and self.bound <= CLOSE

    @property
    def alike(self) -> bool:
        """Do all seeds have the same difference? Then nothing says how far it scatters: accuracies
        are whole numbers of images, and a few of them may agree by chance."""
        return max(self.differences) - min(self.differences) <= SAME

    @cached_property
    def interval(self) -> Interval | None:
        """That contains the true mean with a probability of 95 %, by Student's t: exact if the
        differences are normally distributed. None for a single seed, and if all are alike."""
        if self.spread.deviation is None or self.alike:
            return None
        from scipy.stats import t  # type: ignore[import-untyped]  # a third of a second

        quantile = float(t.ppf((1 + CONFIDENCE) / 2, self.seeds - 1))
        half = quantile * self.spread.deviation / math.sqrt(self.seeds)
        return self.spread.mean - half, self.spread.mean + half

    @cached_property
    def p_value(self) -> float | None:
        """How likely so large a difference would be if there were none: Student's paired t-test,
        or the sign test if all differences are alike. None for a single seed."""
        if self.spread.deviation is None:
            return None
        if self.alike:
            return 1.0 if self.ties else 2.0 ** (1 - self.seeds)
        from scipy.stats import t

        error = self.spread.deviation / math.sqrt(self.seeds)
        return 2 * float(t.sf(abs(self.spread.mean) / error, self.seeds - 1))


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Corrected for the number of comparisons (Holm, 1979): below 0.05, none of those found is by
    chance with a probability of 95 %."""
    corrected: dict[Name, float] = {}
    reached = 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_value))
        corrected[name] = reached
    return {name: corrected[name] for name in p_values}


@dataclass(frozen=True)
class Pair:
    """`method` minus `other`."""

    method: str
    other: str
    paired: Paired
    p_value: float | None  # corrected for what it is asked along with; None for a single seed

    def __neg__(self) -> Pair:
        return replace(self, method=self.other, other=self.method, paired=-self.paired)

    @property
    def told_apart(self) -> bool:
        return self.p_value is not None and self.p_value < LEVEL

    @property
    def corrected_away(self) -> bool:
        """Would these two be told apart if nothing else were asked?"""
        own = self.paired.p_value
        return own is not None and own < LEVEL and not self.told_apart

    def to_json(self) -> dict[str, Any]:
        paired = self.paired
        return {
            "method": self.method,
            "other": self.other,
            "mean": paired.spread.mean,
            "deviation": paired.spread.deviation,
            "count": paired.seeds,
            "interval": paired.interval,
            "p_value": paired.p_value,
            "p_corrected": self.p_value,
            "told_apart": self.told_apart,
            "within": paired.bound,
            "wins": paired.wins,
            "ties": paired.ties,
            "losses": paired.losses,
        }


@dataclass(frozen=True)
class Pairs:
    """The differences that were asked for among the methods of one task."""

    pairs: tuple[Pair, ...]  # without those that have no seed in common
    reference: str = ""  # that each is compared with; empty: all pairs

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[Name, float]], reference: str = "") -> Pairs:
        """Given scores by seed: every other method minus the reference, or, without one, all pairs,
        a later method minus an earlier one. p is corrected for those and no others."""
        others = [method for method in scores if method != reference]
        later_first = ((later, earlier) for earlier, later in combinations(scores, 2))
        names = product(others, [reference]) if reference else later_first
        found = {
            (method, other): paired
            for method, other in names
            if (paired := Paired.of(scores[method], scores[other])) is not None
        }
        known = {names: p for names, paired in found.items() if (p := paired.p_value) is not None}
        corrected = holm(known)
        pairs = (Pair(*names, paired, corrected.get(names)) for names, paired in found.items())
        return cls(tuple(pairs), reference)

    @property
    def tested(self) -> int:
        """How many differences the p-values are corrected for."""
        return sum(pair.p_value is not None for pair in self.pairs)

    @cached_property
    def _by_names(self) -> dict[tuple[str, str], Pair]:
        return {(pair.method, pair.other): pair for pair in self.pairs}

    def between(self, method: str, other: str) -> Pair | None:
        """`method` minus `other`; None if that was not asked, or they have no seed in common."""
        if (method, other) in self._by_names:
            return self._by_names[method, other]
        turned = self._by_names.get((other, method))
        return None if turned is None else -turned
