"""The order of the methods, ours and the paper's: the claim that can be checked at another size."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from dcfl.studies.recipes.published import ACCURACY_TABLES, CLAIMS, published
from dcfl.studies.recipes.recipe import ROWS

DCFL = ("DCFL-SW", "DCFL-PW")
# The paper has a DCFL variant above each of the others: left < right.
DUELS = tuple((other, variant) for other in ROWS if other not in DCFL for variant in DCFL)


@dataclass(frozen=True)
class Score:
    """One method's result in one place, by one measure."""

    ours: Mapping[int, float]  # by seed
    paper: float

    def mean(self, seeds: Collection[int]) -> float:
        """Over these seeds, for comparison with another method; over all if there are none."""
        return fmean([self.ours[seed] for seed in seeds] or self.ours.values())


Place = tuple[str, str, str, str]  # table, data set, split and measure
Contests = Mapping[Place, Mapping[str, Score]]  # in each place, by method


@dataclass(frozen=True)
class ClaimCheck:
    """`low` < `high`: how often in our cells, and how often in the same cells of the paper."""

    low: str
    high: str
    ours: int
    papers: int
    of: int

    @classmethod
    def over(cls, low: str, high: str, contests: Contests) -> ClaimCheck:
        pairs = [
            (scores[low], scores[high])
            for scores in contests.values()
            if low in scores and high in scores
        ]
        ours = 0
        for a, b in pairs:
            seeds = a.ours.keys() & b.ours.keys()
            ours += a.mean(seeds) < b.mean(seeds)
        return cls(low, high, ours, sum(a.paper < b.paper for a, b in pairs), len(pairs))


def checks(claims: Iterable[tuple[str, str]], contests: Contests) -> list[ClaimCheck]:
    return [ClaimCheck.over(low, high, contests) for low, high in claims]


@dataclass(frozen=True)
class Leaders:
    """The best and the second best of the methods in one place; several if they are equal."""

    place: Place
    methods: int  # compared, by us and in the paper
    best: tuple[str, ...]
    second: tuple[str, ...]
    papers_best: tuple[str, ...]
    papers_second: tuple[str, ...]

    @classmethod
    def of(cls, place: Place, scores: Mapping[str, Score]) -> Leaders:
        seeds = set.intersection(*(set(score.ours) for score in scores.values()))
        ours = ranks({row: score.mean(seeds) for row, score in scores.items()})
        papers = ranks({row: score.paper for row, score in scores.items()})

        def at(rank: int, by_row: dict[str, int]) -> tuple[str, ...]:
            return tuple(row for row, row_rank in by_row.items() if row_rank == rank)

        return cls(place, len(scores), at(1, ours), at(2, ours), at(1, papers), at(2, papers))

    @property
    def dcfl_leads(self) -> bool:
        """Is the better DCFL variant above every other method?"""
        return set(self.best) <= set(DCFL)

    @property
    def dcfl_leads_in_the_paper(self) -> bool:
        return set(self.papers_best) <= set(DCFL)


def leaders(contests: Contests) -> list[Leaders]:
    """Of the places where DCFL is compared with another method."""
    return [
        Leaders.of(place, scores)
        for place, scores in contests.items()
        if scores.keys() & set(DCFL) and scores.keys() - set(DCFL)
    ]


@dataclass(frozen=True)
class Lead:
    """In how many cells the better DCFL variant is above every other method that was run."""

    methods: int  # in each of these cells
    ours: int
    papers: int
    of: int


def leads(all_leaders: Iterable[Leaders]) -> list[Lead]:
    """By the number of methods compared: to be the best of four is worth less than of ten."""
    by_count: dict[int, list[Leaders]] = {}
    for place in all_leaders:
        by_count.setdefault(place.methods, []).append(place)
    return [
        Lead(
            methods,
            sum(place.dcfl_leads for place in places),
            sum(place.dcfl_leads_in_the_paper for place in places),
            len(places),
        )
        for methods, places in sorted(by_count.items(), reverse=True)
    ]


@cache
def published_contests() -> Contests:
    """All cells of the paper's accuracy tables, with the paper's figures as ours too."""
    contests: dict[Place, dict[str, Score]] = {}
    for table in ACCURACY_TABLES:
        for row, datasets in published()["tables"][table].items():
            for dataset, splits in datasets.items():
                for split, metrics in splits.items():
                    for metric, value in metrics.items():
                        place = (table, dataset, split, metric)
                        contests.setdefault(place, {})[row] = Score({0: value}, value)
    return contests


def published_order(
    claims: Iterable[tuple[str, str]] = CLAIMS,
) -> dict[tuple[str, str], tuple[int, int]]:
    """For each claim, in how many of the paper's cells it holds, and of how many."""
    return {
        (check.low, check.high): (check.papers, check.of)
        for check in checks(claims, published_contests())
    }


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 is the best; equal values share a rank."""
    return {
        name: 1 + sum(other > value for other in values.values()) for name, value in values.items()
    }
