"""What came out of a recipe's cells: means over seeds, pairs, ranks, beside the paper's."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from dcfl.comparisons.cells import CellFolder
from dcfl.comparisons.groups import Group, setting
from dcfl.comparisons.pairs import LEVEL, Pair, Paired, Pairs, Spread
from dcfl.config import Tables
from dcfl.paper.recipe import REFERENCE, Recipe, RecipeCell
from dcfl.paper.scales import Scale
from dcfl.runs.folder import RecordedRun

# The paper's order of the methods, as inequalities: left < right in most cells of its tables.
CLAIMS = (
    ("FedSCL", "FedRCL"),
    ("FedRCL", "FedAvg"),
    ("FedAvg", "FedProc"),
    ("FedProc", "DCFL-PW"),
    ("FedAvg", "DCFL-PW"),
    ("FedAvg", "DCFL-SW"),
)


@cache
def published() -> dict[str, Any]:
    file = resources.files("dcfl.paper") / "published.json"
    return dict(json.loads(file.read_text(encoding="utf-8")))


def figures(table: str, row: str, dataset: str, split: str) -> Mapping[str, float]:
    """The paper's MAX and EMA; empty where it has no such cell."""
    rows: dict[str, Any] = published()["tables"].get(table, {})
    found: dict[str, float] = rows.get(row, {}).get(dataset, {}).get(split, {})
    return found


@dataclass(frozen=True)
class MethodScore:
    """One method's result in one place, by one measure."""

    ours: Mapping[int, float]  # by seed
    paper: float
    head: str = ""  # on which its term acts; empty without one

    def like(self, other: MethodScore) -> bool:
        """Do the two differ in the method, and not in the head that their terms act on?"""
        return not (self.head and other.head) or self.head == other.head


def head_of(tables: Tables) -> str:
    """The head that a method's term acts on, from the tables of a config."""
    on_head = tables["method"].get("embedding") == "projection"
    return str(tables["model"]["head"]) if on_head else ""


Contest = Mapping[str, MethodScore]  # in one place and by one measure, by method


@dataclass(frozen=True)
class ClaimCheck:
    """`low` < `high`: in how many of our cells that compare like with like it holds or is the other
    way round, and in how many of the same cells of the paper it holds."""

    low: str
    high: str
    holds: int
    fails: int
    ties: int  # not told apart, or a single seed
    papers: int

    @property
    def of(self) -> int:
        return self.holds + self.fails + self.ties

    @classmethod
    def over(cls, low: str, high: str, contests: Iterable[Contest]) -> ClaimCheck:
        both = [
            (one[low], one[high])
            for one in contests
            if low in one and high in one and one[low].like(one[high])
        ]
        found = [_winner(a.ours, b.ours) for a, b in both]
        papers = sum(a.paper < b.paper for a, b in both)
        return cls(low, high, found.count(1), found.count(-1), found.count(0), papers)


def _winner(low: Mapping[int, float], high: Mapping[int, float]) -> int:
    """1 if `high` is above `low`, -1 if below, 0 if their seeds do not tell."""
    paired = Paired.of(high, low)
    if paired is None or paired.p_value is None or paired.p_value >= LEVEL:
        return 0
    return 1 if paired.spread.mean > 0 else -1


def claim_checks(contests: Sequence[Contest]) -> list[ClaimCheck]:
    """Of those methods that can be compared in any of the cells."""
    found = [ClaimCheck.over(low, high, contests) for low, high in CLAIMS]
    return [check for check in found if check.of]


Metric = Literal["max", "ema"]
METRICS: tuple[Metric, ...] = ("max", "ema")
Place = tuple[str, str]  # block and column: where methods are compared


@dataclass(frozen=True)
class ResultRow:
    """A row in one place, over its finished seeds."""

    row: str
    runs: dict[int, RecordedRun]  # by seed
    paper: Mapping[str, float]  # empty if it has no such row

    def values(self, metric: Metric) -> dict[int, float]:
        last = {seed: run.rounds[-1][f"{metric}_accuracy"] for seed, run in self.runs.items()}
        return {seed: math.nan if value is None else value for seed, value in last.items()}

    def spread(self, metric: Metric) -> Spread:
        return Spread.of(list(self.values(metric).values()))

    @property
    def head(self) -> str:
        return head_of(next(iter(self.runs.values())).config)

    @property
    def fluctuation(self) -> float:
        """How far accuracies move between scored rounds, in the second half of training."""
        return fmean(fluctuation(run) for run in self.runs.values())

    @property
    def group(self) -> Group:
        return Group(self.row, tuple(self.runs.values()))


def fluctuation(run: RecordedRun) -> float:
    """Mean absolute change of the accuracy between scored rounds in the second half, in points."""
    known = [row.accuracy for row in run.rounds if row.accuracy is not None]
    late = known[len(known) // 2 :]
    return fmean(abs(after - before) for before, after in pairwise(late)) if late[1:] else math.nan


def ema_at(run: RecordedRun, share: float) -> float:
    """The moving average after this share of all rounds."""
    planned = int(setting(run, "federation.rounds"))
    known = [row for row in run.rounds if row.ema_accuracy is not None]
    reached = [row.ema_accuracy for row in known if row.round <= share * planned]
    return math.nan if not reached or reached[-1] is None else reached[-1]


@dataclass(frozen=True)
class Results:
    recipe: Recipe
    scale: Scale
    cells: Sequence[CellFolder[RecipeCell]]  # all that the recipe asks for
    changes: Sequence[str] = ()  # KEY=VALUE, where not the scale's own

    @cached_property
    def entries(self) -> dict[Place, dict[str, ResultRow]]:
        """The rows with a finished run, in the recipe's order whichever finished first."""
        runs: dict[Place, dict[str, dict[int, RecordedRun]]] = {}
        for one in self.cells:  # the places of those that are not finished too, for their order
            runs.setdefault((one.cell.block, one.cell.column), {}).setdefault(one.cell.row, {})
        for cell, run in self.finished:
            runs[cell.block, cell.column][cell.row][cell.seed] = run
        entries = {
            place: {
                row: ResultRow(row, by_seed, figures(self.recipe.published, row, *place))
                for row, by_seed in rows.items()
                if by_seed
            }
            for place, rows in runs.items()
        }
        return {place: rows for place, rows in entries.items() if rows}

    @cached_property
    def finished(self) -> list[tuple[RecipeCell, RecordedRun]]:
        return [(one.cell, one.run) for one in self.cells if one.finished and one.run is not None]

    @property
    def failures(self) -> dict[str, str]:
        """Why, by the name of the cell."""
        return {one.name: one.failed for one in self.cells if one.failed}

    @property
    def blocks(self) -> list[str]:
        return list(dict.fromkeys(block for block, _ in self.entries))

    def columns(self, block: str) -> list[str]:
        """The columns in the recipe's order, without the unnamed one that only FedAvg may be in."""
        return [column for other, column in self.entries if other == block and column]

    def rows(self, block: str) -> list[str]:
        inside = {cell.cell.row: None for cell in self.cells if cell.cell.block == block}
        known = {row for place, rows in self.entries.items() if place[0] == block for row in rows}
        return [row for row in inside if row in known]

    def reference(self, place: Place) -> ResultRow | None:
        """FedAvg in the same place, or the block's only one."""
        block, _ = place
        here = self.entries.get(place, {})
        return here.get(REFERENCE) or self.entries.get((block, ""), {}).get(REFERENCE)

    def against_reference(self, place: Place, metric: Metric) -> dict[str, Pair]:
        """The methods in a place that have a seed in common with FedAvg, each compared with it."""
        reference = self.reference(place)
        if reference is None:
            return {}
        scores = {row: entry.values(metric) for row, entry in self.entries[place].items()}
        pairs = Pairs.of({REFERENCE: reference.values(metric), **scores}, REFERENCE)
        return {pair.method: pair for pair in pairs.pairs}

    @cached_property
    def contests(self) -> list[Contest]:
        """The places in which rows that the paper has too can be put in order."""
        return [
            {
                row: MethodScore(entry.values(metric), entry.paper[metric], entry.head)
                for row, entry in rows.items()
                if entry.paper
            }
            for rows in self.entries.values()
            for metric in METRICS
        ]
