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
from typing import Any, Literal, NamedTuple

from dcfl.comparisons.cells import CellFolder
from dcfl.comparisons.groups import Group, setting
from dcfl.comparisons.pairs import Pair, Pairs, Spread
from dcfl.comparisons.standing import Ranking, comparable_means
from dcfl.paper.recipe import REFERENCE, ROWS, Recipe, RecipeCell
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
ACCURACY_TABLES = ("participation-5", "participation-10", "participation-2", "tiny-imagenet")


class Figures(NamedTuple):
    max: float
    ema: float


@cache
def published() -> dict[str, Any]:
    file = resources.files("dcfl.paper") / "published.json"
    return dict(json.loads(file.read_text(encoding="utf-8")))


def figures(table: str, row: str, dataset: str, split: str) -> Figures | None:
    """The paper's figures; None where it has no such cell."""
    tables = published()["tables"]
    cell = tables.get(table, {}).get(row, {}).get(dataset, {}).get(split)
    return Figures(**cell) if cell else None


def papers_mu(row: str, dataset: str) -> str:
    """The paper's mu as text; empty where it gives none."""
    method = "dcfl" if row.startswith("DCFL") else row.lower()
    mu = published()["mu"].get(method, {}).get(dataset)
    return "" if mu is None else f"{mu:g}"


DCFL = ("DCFL-SW", "DCFL-PW")
# The paper has a DCFL variant above each of the others: left < right.
DUELS = tuple((other, variant) for other in ROWS if other not in DCFL for variant in DCFL)


@dataclass(frozen=True)
class MethodScore:
    """One method's result in one place, by one measure."""

    ours: Mapping[int, float]  # by seed
    paper: float


Contest = tuple[str, str, str, str]  # table, data set, split and measure
Contests = Mapping[Contest, Mapping[str, MethodScore]]  # in each place, by method


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
        means = [comparable_means({low: a.ours, high: b.ours}) for a, b in pairs]
        ours = sum(mean[low] < mean[high] for mean in means)
        return cls(low, high, ours, sum(a.paper < b.paper for a, b in pairs), len(pairs))


def checks(claims: Iterable[tuple[str, str]], contests: Contests) -> list[ClaimCheck]:
    """Of those methods that can be compared in any of the cells."""
    found = [ClaimCheck.over(low, high, contests) for low, high in claims]
    return [check for check in found if check.of]


def lead(contests: Contests) -> ClaimCheck:
    """In how many cells the better DCFL variant is above every other method that was run."""
    ours, papers, of = 0, 0, 0
    for scores in contests.values():
        if scores.keys() & set(DCFL) and scores.keys() - set(DCFL):
            means = comparable_means({row: score.ours for row, score in scores.items()})
            ours += _leads(means)
            papers += _leads({row: score.paper for row, score in scores.items()})
            of += 1
    return ClaimCheck("every other", "DCFL", ours, papers, of)


def _leads(values: Mapping[str, float]) -> bool:
    return {row for row, rank in ranks(values).items() if rank == 1} <= set(DCFL)


@cache
def published_contests() -> Contests:
    """All cells of the paper's accuracy tables, with the paper's figures as ours too."""
    contests: dict[Contest, dict[str, MethodScore]] = {}
    for table in ACCURACY_TABLES:
        for row, datasets in published()["tables"][table].items():
            for dataset, splits in datasets.items():
                for split, metrics in splits.items():
                    for metric, value in metrics.items():
                        place = (table, dataset, split, metric)
                        contests.setdefault(place, {})[row] = MethodScore({0: value}, value)
    return contests


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 is the best; equal values share a rank."""
    return {
        name: 1 + sum(other > value for other in values.values()) for name, value in values.items()
    }


Metric = Literal["max", "ema", "client-max", "client-ema"]
METRICS: tuple[Metric, ...] = ("max", "ema")
# Of a client: each on its own mix of classes, then the mean, as the paper split its test data too.
QUANTITIES: dict[Metric, str] = {
    "max": "max_accuracy",
    "ema": "ema_accuracy",
    "client-max": "max_client_accuracy",
    "client-ema": "ema_client_accuracy",
}
Place = tuple[str, str]  # block and column: where methods are compared


@dataclass(frozen=True)
class ResultRow:
    """A row in one place, over its finished seeds."""

    row: str
    runs: dict[int, RecordedRun]  # by seed
    paper: Figures | None

    def values(self, metric: Metric) -> dict[int, float]:
        last = {seed: run.rounds[-1][QUANTITIES[metric]] for seed, run in self.runs.items()}
        return {seed: math.nan if value is None else value for seed, value in last.items()}

    def spread(self, metric: Metric) -> Spread:
        return Spread.of(list(self.values(metric).values()))

    def published(self, metric: Metric) -> float | None:
        """The paper has one MAX and one EMA, and does not say on which test data."""
        return getattr(self.paper, metric.removeprefix("client-")) if self.paper else None

    def fluctuation(self) -> Spread:
        """How far accuracies move between scored rounds, in the second half of training."""
        return Spread.of([fluctuation(run) for run in self.runs.values()])

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
        for cell_folder in self.cells:
            cell = cell_folder.cell
            by_seed = runs.setdefault((cell.block, cell.column), {}).setdefault(cell.row, {})
            if cell_folder.finished and cell_folder.run is not None:
                by_seed[cell.seed] = cell_folder.run
        entries = {
            place: {
                row: ResultRow(row, by_seed, figures(self.recipe.published, row, *place))
                for row, by_seed in rows.items()
                if by_seed
            }
            for place, rows in runs.items()
        }
        return {place: rows for place, rows in entries.items() if rows}

    @property
    def finished(self) -> int:
        return sum(cell_folder.finished for cell_folder in self.cells)

    @property
    def failures(self) -> dict[str, str]:
        """Why, by the name of the cell."""
        return {
            cell_folder.name: cell_folder.failed for cell_folder in self.cells if cell_folder.failed
        }

    @property
    def blocks(self) -> list[str]:
        return list(dict.fromkeys(block for block, _ in self.entries))

    def columns(self, block: str) -> list[str]:
        """The columns in the recipe's order, without the unnamed one that only FedAvg may be in."""
        return [column for other, column in self.entries if other == block and column]

    def rows(self, block: str) -> list[str]:
        inside = (cell_folder.cell for cell_folder in self.cells if cell_folder.cell.block == block)
        return [
            *dict.fromkeys(
                cell.row
                for cell in inside
                if cell.row in self.entries.get((block, cell.column), {})
            )
        ]

    def reference(self, place: Place) -> ResultRow | None:
        """FedAvg in the same place, or the block's only one."""
        block, _ = place
        here = self.entries.get(place, {})
        return here.get(REFERENCE) or self.entries.get((block, ""), {}).get(REFERENCE)

    def pairs(self, place: Place, metric: Metric) -> Pairs:
        """Each method in a place with the reference; all pairs where there is none."""
        if (place, metric) not in self._pairs:
            rows, reference = self.entries[place], self.reference(place)
            entries = {reference.row: reference, **rows} if reference else rows
            scores = {row: entry.values(metric) for row, entry in entries.items()}
            self._pairs[place, metric] = Pairs.of(scores, reference.row if reference else "")
        return self._pairs[place, metric]

    @cached_property
    def _pairs(self) -> dict[tuple[Place, Metric], Pairs]:
        """The pairs that somebody has asked for."""
        return {}

    def against_reference(self, place: Place, entry: ResultRow, metric: Metric) -> Pair | None:
        reference = self.reference(place)
        if reference is None:
            return None
        return self.pairs(place, metric).between(entry.row, reference.row)

    def ranking(self, metric: Metric) -> Ranking | None:
        """The mean ranks over all places."""
        return Ranking.of(
            {
                ", ".join(place): comparable_means({r: e.values(metric) for r, e in rows.items()})
                for place, rows in self.entries.items()
            }
        )

    def ranks(self, place: Place, metric: Metric) -> dict[str, int]:
        """Ranks among the rows that the paper has too, if any: its own are among those."""
        entries = self.entries[place]
        shared = {row: entry for row, entry in entries.items() if entry.paper} or entries
        return ranks(comparable_means({row: e.values(metric) for row, e in shared.items()}))

    def papers_ranks(self, place: Place, metric: Metric) -> dict[str, int]:
        entries = self.entries[place].items()
        known = {row: value for row, e in entries if (value := e.published(metric)) is not None}
        return ranks(known)

    @cached_property
    def contests(self) -> Contests:
        """The places in which rows that the paper has too can be put in order."""
        return {
            (self.recipe.name, *place, metric): {
                row: MethodScore(entry.values(metric), figure)
                for row, entry in rows.items()
                if (figure := entry.published(metric)) is not None
            }
            for place, rows in self.entries.items()
            for metric in METRICS
        }


def combined_contests(all_results: Iterable[Results]) -> Contests:
    """The contests of several tables."""
    return {place: scores for results in all_results for place, scores in results.contests.items()}
