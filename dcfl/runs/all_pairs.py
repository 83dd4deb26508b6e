"""Every pair of methods that were trained on the same task, compared seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

from dcfl.runs.pairs import LEVEL, Name, Paired, holm


@dataclass(frozen=True)
class Pair:
    """`method` minus `other`."""

    method: str
    other: str
    paired: Paired
    p_value: float | None  # corrected for all pairs of the task; None for a single seed

    def __neg__(self) -> Pair:
        return replace(self, method=self.other, other=self.method, paired=-self.paired)

    @property
    def told_apart(self) -> bool:
        return self.p_value is not None and self.p_value < LEVEL

    @property
    def corrected_away(self) -> bool:
        """Would these two be told apart if there were no other pairs?"""
        own = self.paired.p_value
        return own is not None and own < LEVEL and not self.told_apart

    @cached_property
    def seeds_needed(self) -> int | None:
        """To tell these two apart among as many pairs; None: more than MOST_SEEDS, or unknown."""
        own = self.paired.p_value
        if not own or not self.p_value:
            return self.paired.seeds_needed()
        return self.paired.seeds_needed(LEVEL * own / self.p_value)

    def to_json(self) -> dict[str, Any]:
        paired = self.paired
        return {
            "method": self.method,
            "other": self.other,
            "mean": paired.spread.mean,
            "deviation": paired.spread.deviation,
            "count": paired.seeds,
            "interval": paired.interval,
            "bootstrap_interval": paired.bootstrap_interval,
            "p_value": paired.p_value,
            "p_corrected": self.p_value,
            "told_apart": self.told_apart,
            "wins": paired.wins,
            "ties": paired.ties,
            "losses": paired.losses,
            "seeds_needed": None if self.told_apart else self.seeds_needed,
        }


@dataclass(frozen=True)
class AllPairs:
    """All methods of one task. Pairs without a common seed are left out."""

    pairs: tuple[Pair, ...]  # a later method minus an earlier one

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[Name, float]]) -> AllPairs:
        """Of each method's scores by seed."""
        found = {
            (method, other): paired
            for other, method in combinations(scores, 2)
            if (paired := Paired.of(scores[method], scores[other])) is not None
        }
        known = {names: p for names, paired in found.items() if (p := paired.p_value) is not None}
        corrected = holm(known)
        return cls(
            tuple(Pair(*names, paired, corrected.get(names)) for names, paired in found.items())
        )

    @property
    def tested(self) -> int:
        """How many pairs the p-values are corrected for."""
        return sum(pair.p_value is not None for pair in self.pairs)

    @cached_property
    def _by_names(self) -> dict[tuple[str, str], Pair]:
        return {(pair.method, pair.other): pair for pair in self.pairs}

    def between(self, method: str, other: str) -> Pair | None:
        """`method` minus `other`; None if they have no seed in common, or are the same."""
        if (method, other) in self._by_names:
            return self._by_names[method, other]
        turned = self._by_names.get((other, method))
        return None if turned is None else -turned
