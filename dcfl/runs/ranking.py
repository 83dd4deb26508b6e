"""Methods ranked over several data sets or splits (Demsar, 2006): Friedman's and Nemenyi's tests.

Accuracies on different data cannot be averaged; ranks can. Within a data set the best method has
rank 1, and equal ones share the mean of their ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dcfl.runs.pairs import CONFIDENCE, LEVEL

FEWEST_METHODS, FEWEST_TASKS = 3, 2


@dataclass(frozen=True)
class Ranking:
    """The mean ranks of methods that were all trained on the same tasks."""

    mean_ranks: dict[str, float]  # the best first
    tasks: int
    p_value: float  # of Friedman's test: how likely such ranks are if no method is better

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[str, float]]) -> Ranking | None:
        """Of the scores by task and method; methods that lack a task are left out. None for fewer
        than three methods or two tasks."""
        from scipy.stats import friedmanchisquare, rankdata  # type: ignore[import-untyped]

        tasks = [{m: s for m, s in task.items() if math.isfinite(s)} for task in scores.values()]
        methods = [m for m in tasks[0] if all(m in task for task in tasks)] if tasks else []
        if len(methods) < FEWEST_METHODS or len(tasks) < FEWEST_TASKS:
            return None
        columns = [[task[method] for task in tasks] for method in methods]
        ranks = rankdata([[-value for value in column] for column in columns], axis=0)
        means = dict(zip(methods, ranks.mean(axis=1).tolist(), strict=True))
        level = bool((ranks == ranks[0]).all())  # every method equal everywhere: no statistic
        p_value = 1.0 if level else float(friedmanchisquare(*columns).pvalue)
        return cls(dict(sorted(means.items(), key=lambda item: item[1])), len(tasks), p_value)

    @cached_property
    def critical_difference(self) -> float:
        """Nemenyi's: mean ranks that are less apart than this are not distinguishable."""
        from scipy.stats import studentized_range

        count = len(self.mean_ranks)
        quantile = float(studentized_range.ppf(CONFIDENCE, count, math.inf)) / math.sqrt(2)
        return quantile * math.sqrt(count * (count + 1) / (6 * self.tasks))

    @property
    def told_apart(self) -> bool:
        """Is any method better than another, by Friedman's test?"""
        return self.p_value < LEVEL

    @cached_property
    def level_with_the_best(self) -> list[str]:
        best, *others = self.mean_ranks
        return [method for method in others if not self._apart(best, method)]

    def cliques(self) -> list[Sequence[str]]:
        """The largest sets of methods that are not distinguishable from each other, the best
        first; each has at least two."""
        names = list(self.mean_ranks)
        runs: list[Sequence[str]] = []
        for start, first in enumerate(names):
            reach = [name for name in names[start:] if not self._apart(first, name)]
            if len(reach) > 1 and not (runs and reach[-1] in runs[-1]):
                runs.append(reach)
        return runs

    def _apart(self, one: str, other: str) -> bool:
        gap = abs(self.mean_ranks[one] - self.mean_ranks[other])
        return self.told_apart and gap > self.critical_difference

    def to_json(self) -> dict[str, Any]:
        return {
            "mean_ranks": self.mean_ranks,
            "tasks": self.tasks,
            "friedman_p": self.p_value,
            "critical_difference": self.critical_difference,
            "not_distinguishable": self.cliques(),
        }
