"""How methods stand: pairs within a task, ranks over tasks, what a target costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from statistics import fmean
from typing import Any

from dcfl.comparisons.groups import (
    ABOUT_OWN,
    Group,
    Outcome,
    Yardstick,
    clients_scored_on,
    seeds_of,
    yardstick,
)
from dcfl.comparisons.pairs import CONFIDENCE, LEVEL, Name, Pair, Pairs
from dcfl.runs.folder import RecordedRun

FEWEST_METHODS, FEWEST_TASKS = 3, 2


@dataclass(frozen=True)
class Ranking:
    """The mean ranks of methods that were all trained on the same tasks."""

    mean_ranks: dict[str, float]  # the best first
    tasks: int
    p_value: float  # of Friedman's test: how likely such ranks are if no method is better

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[str, float]]) -> Ranking | None:
        """Ranks methods by their scores in each task; methods that lack a task are left out. None
        for fewer than three methods or two tasks."""
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


def bytes_so_far(run: RecordedRun) -> list[float]:
    """Bytes up and down since the beginning, after each round."""
    return list(accumulate(float(row.bytes_up + row.bytes_down) for row in run.rounds))


def client_seconds_so_far(run: RecordedRun) -> list[float]:
    """Seconds that clients have trained since the beginning, all together, after each round."""
    by_round = {row.round: 0.0 for row in run.rounds}
    for row in run.clients:
        by_round[row.round] = by_round.get(row.round, 0.0) + row.seconds
    return list(accumulate(by_round[row.round] for row in run.rounds))


@dataclass(frozen=True)
class CostToReach:
    """What training up to some round took."""

    rounds: float
    bytes: float  # up and down
    client_seconds: float
    virtual_seconds: float | None = None  # None without a clock


def cost_to_reach(
    run: RecordedRun, target: float, quantity: str = "ema_accuracy"
) -> CostToReach | None:
    """What it took until the quantity reached the target in a scored round; None if it never did.

    The moving average, because a single lucky round is not an accuracy reached; or the clients' own
    accuracy, which is known after the last round.
    """
    own = quantity == "own_accuracy"
    scored = [index for index, row in enumerate(run.rounds) if row.accuracy is not None]
    for index in scored[-1:] if own else scored:
        row = run.rounds[index]
        value = Outcome.of(run).own_accuracy if own else row[quantity]
        if value is not None and value >= target:
            sent, worked = bytes_so_far(run)[index], client_seconds_so_far(run)[index]
            return CostToReach(row.round, sent, worked, row.virtual_time)
    return None


@dataclass(frozen=True)
class Reached:
    """The costs of one method's runs; None for a run that did not reach the target."""

    costs: Sequence[CostToReach | None]

    @property
    def count(self) -> int:
        return sum(cost is not None for cost in self.costs)

    @property
    def mean(self) -> CostToReach | None:
        """The mean over the runs that reached it."""
        known = [cost for cost in self.costs if cost is not None]
        if not known:
            return None
        timed = [cost.virtual_seconds for cost in known if cost.virtual_seconds is not None]
        return CostToReach(
            fmean(cost.rounds for cost in known),
            fmean(cost.bytes for cost in known),
            fmean(cost.client_seconds for cost in known),
            fmean(timed) if len(timed) == len(known) else None,
        )


@dataclass(frozen=True)
class Standing:
    """Groups of recorded runs, compared by one accuracy. The first method is the reference;
    baselines are shown beside the methods, and neither compared nor ranked."""

    all_groups: Sequence[Group]
    by: str = ""  # of BY; empty: by the models that are used, "clients" where some have their own
    target: float | None = None  # percent; by default what the reference reaches, seed by seed
    all_pairs: bool = False  # compared, and corrected for; else each method with the reference

    @cached_property
    def groups(self) -> list[Group]:
        """Those of methods; of baselines, where there is nothing else."""
        return [one for one in self.all_groups if not one.baseline] or [*self.all_groups]

    @cached_property
    def baselines(self) -> list[Group]:
        """Those of tasks in which there is a method."""
        tasks = {group.task for group in self.groups if not group.baseline}
        return [one for one in self.all_groups if one.baseline and one.task in tasks]

    @property
    def shown(self) -> list[Group]:
        return [*self.groups, *self.baselines]

    @cached_property
    def yardstick(self) -> Yardstick:
        return yardstick(self.by, any(group.has_personal for group in self.groups))

    @property
    def quantity(self) -> str:
        return self.yardstick.quantity

    @property
    def about_own(self) -> str:
        """What is compared, if it is not the global model."""
        runs = (run for group in self.groups for run in group.counted)
        own = self.quantity == "own_accuracy"
        return ABOUT_OWN.format(clients_scored_on(runs)) if own else ""

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
    def pairs(self) -> dict[str, Pairs]:
        """Each method with the reference, or all pairs, by task."""
        return {
            task: Pairs.of(
                {group.method: group.scores(self.quantity) for group in groups},
                "" if self.all_pairs else groups[0].method,
            )
            for task, groups in self.tasks.items()
        }

    def gain(self, group: Group) -> Pair | None:
        """Its pair with the reference; None for the reference, and without a common seed."""
        reference = self.reference(group)
        return self.pairs[group.task].between(group.method, reference.method)

    def best(self, task: str, quantity: str = "") -> Group | None:
        """The highest mean, of what is compared unless another quantity is named; None before the
        end of the first round."""
        means = {
            group.method: group.spread(quantity or self.quantity).mean for group in self.tasks[task]
        }
        begun = [group for group in self.tasks[task] if not math.isnan(means[group.method])]
        return max(begun, key=lambda group: means[group.method]) if begun else None

    def ties(self, task: str, quantity: str) -> set[str]:
        """The methods that the paired test does not tell from the best one, corrected for as many
        differences as `pairs` are. None with a single seed, which cannot be tested."""
        best = self.best(task, quantity)
        scores = {group.method: group.scores(quantity) for group in self.tasks[task]}
        if best is None:
            return set()
        pairs = Pairs.of(scores, "" if self.all_pairs else best.method)
        found = {method: pairs.between(method, best.method) for method in scores}
        return {
            method
            for method, pair in found.items()
            if pair and pair.p_value is not None and not pair.told_apart
        }

    def mean(self, group: Group) -> float:
        return group.spread(self.quantity).mean

    @cached_property
    def ranking(self) -> Ranking | None:
        """The ranks over the tasks; None if there are too few tasks or methods."""
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
            "baselines": [
                {**group.to_json(), "baseline": group.baseline} for group in self.baselines
            ],
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
            **_known(reached.mean),
        }
        return {**group.to_json(), "gain": gain and gain.to_json(), "target": costs}


def _known(cost: CostToReach | None) -> dict[str, float]:
    values = asdict(cost).items() if cost else ()
    return {name: value for name, value in values if value is not None}


def comparable_means(scores: Mapping[str, Mapping[Name, float]]) -> dict[str, float]:
    """Each method's mean over the seeds that all of them have; over its own if there are none."""
    shared = set.intersection(*(set(by_seed) for by_seed in scores.values()))
    return {
        method: fmean([by_seed[seed] for seed in shared] or by_seed.values())
        for method, by_seed in scores.items()
    }
