"""How methods stand: pairs within a task, ranks over tasks, what a target costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from dcfl.runs.all_pairs import AllPairs, Pair
from dcfl.runs.groups import Group, seeds_of
from dcfl.runs.pairs import Name
from dcfl.runs.ranking import Ranking
from dcfl.runs.reaching import Reached, cost_to_reach


@dataclass(frozen=True)
class Standing:
    """Groups of recorded runs, compared by EMA. The first method is the reference."""

    groups: Sequence[Group]
    own_mixes: bool = False  # EMA on the clients' own mixes of classes
    target: float | None = None  # percent; by default what the reference reaches, seed by seed

    @property
    def accuracy(self) -> str:
        return "client_accuracy" if self.own_mixes else "accuracy"

    @property
    def quantity(self) -> str:
        return f"ema_{self.accuracy}"

    @cached_property
    def tasks(self) -> dict[str, list[Group]]:
        """The groups by data set and split, each with its reference first."""
        tasks: dict[str, list[Group]] = {}
        for group in self.groups:
            tasks.setdefault(group.task, []).append(group)
        first = self.groups[0].method
        return {
            task: sorted(groups, key=lambda group: group.method != first)
            for task, groups in tasks.items()
        }

    def reference(self, group: Group) -> Group:
        return self.tasks[group.task][0]

    @cached_property
    def pairs(self) -> dict[str, AllPairs]:
        """By task."""
        return {
            task: AllPairs.of({group.method: group.scores(self.quantity) for group in groups})
            for task, groups in self.tasks.items()
        }

    def gain(self, group: Group) -> Pair | None:
        """Against the reference; None for the reference itself, and without a common seed."""
        reference = self.reference(group)
        return self.pairs[group.task].between(group.method, reference.method)

    def best(self, task: str) -> Group | None:
        """The highest mean; None before the end of the first round."""
        begun = [group for group in self.tasks[task] if not math.isnan(self.mean(group))]
        return max(begun, key=self.mean) if begun else None

    def mean(self, group: Group) -> float:
        return group.spread(self.quantity).mean

    @cached_property
    def ranking(self) -> Ranking | None:
        """Over the tasks; None if there are too few of them, or of methods."""
        return Ranking.of(
            {
                task: comparable_means({g.method: g.scores(self.quantity) for g in groups})
                for task, groups in self.tasks.items()
            }
        )

    def target_of(self, task: str) -> float:
        """The accuracy that `reached` is about, on average over seeds."""
        reference = self.tasks[task][0]
        return self.mean(reference) if self.target is None else self.target

    def reached(self, group: Group) -> Reached:
        """What the group's runs needed. A run whose seed the reference lacks has no target."""
        targets = self.reference(group).scores(self.quantity)
        costs = []
        for run in group.counted:
            target = targets.get(seeds_of(run)) if self.target is None else self.target
            if target is not None and not math.isnan(target):
                costs.append(cost_to_reach(run, target, self.quantity))
        return Reached(costs)

    def to_json(self) -> dict[str, Any]:
        """Plain values for programs. `gain` is the paired difference to the reference."""
        return {
            "methods": [self._row(group) for group in self.groups],
            "pairs": [
                {"task": task, **pair.to_json()}
                for task, pairs in self.pairs.items()
                for pair in pairs.pairs
            ],
            "ranking": self.ranking and self.ranking.to_json(),
            "compared_by": self.quantity,
        }

    def _row(self, group: Group) -> dict[str, Any]:
        gain, reached = self.gain(group), self.reached(group)
        costs = {
            "accuracy": self.target_of(group.task),
            "reached": reached.count,
            "of": len(reached.costs),
            **(asdict(reached.mean) if reached.mean else {}),
        }
        return {**group.to_json(), "gain": gain and gain.to_json(), "target": costs}


def comparable_means(scores: Mapping[str, Mapping[Name, float]]) -> dict[str, float]:
    """Each method's mean over the seeds that all of them have; over its own if there are none."""
    shared = set.intersection(*(set(by_seed) for by_seed in scores.values()))
    return {
        method: fmean([by_seed[seed] for seed in shared] or by_seed.values())
        for method, by_seed in scores.items()
    }
