"""What a recipe is: places, and what is trained in each of them; its cells are experiments with
their position in a grid of blocks, rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

from dcfl.comparisons.cells import marks
from dcfl.comparisons.searches import Axis, NeighbourSearch, edges
from dcfl.comparisons.space import Point, tables_of
from dcfl.config import Table, Tables, as_tables, merge
from dcfl.experiment import Experiment
from dcfl.paper.scales import Scale, Where
from dcfl.runs.identity import defaults, differences, flat, of_kind

# As the paper's tables name them, in their order.
ROWS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "MOON": "moon",
    "FedDecorr": "feddecorr",
    "FedRCL": "fedrcl",
    "FedSOL": "fedsol",
    "FedSCL": "fedscl",
    "FedProc": "fedproc",
    "DCFL-SW": "dcfl-sw",
    "DCFL-PW": "dcfl-pw",
}
REFERENCE = "FedAvg"
Score = Callable[["RecipeCell"], float | None]  # None: not trained yet


@dataclass(frozen=True)
class RecipeCell:
    """One run, and its place in a grid. Recipes that need the same run share its folder."""

    block: str
    row: str
    column: str
    seed: int
    where: Where
    plain: Experiment  # the scale's own, with this method and no changes
    experiment: Experiment

    @cached_property
    def name(self) -> str:
        """The folder's name. It contains every setting that differs from the plain experiment and
        can change the result, so that no two experiments share a folder."""
        method = self.experiment.method.name
        return "-".join([str(self.where), method, *self._marks(), f"seed{self.seed}"])

    def _marks(self) -> Iterator[str]:
        settings = flat(as_tables(self.experiment))
        # Another server optimiser has fields that the plain experiment lacks.
        plain = {**defaults(settings), **flat(as_tables(self.plain))}
        changed = {
            key: value
            for key, value, _ in differences(of_kind(settings, "result"), of_kind(plain, "result"))
            if key in settings
        }
        return marks(changed, settings)


@dataclass(frozen=True)
class CellFactory:
    """Makes the cells of one data set, split, participation and seed."""

    scale: Scale
    where: Where
    seed: int

    def cell(
        self,
        row: str,
        column: str | None = None,
        method: str = "",
        fields: Table | None = None,
        changes: Tables | None = None,
    ) -> RecipeCell:
        """A cell with `fields` of the method and `changes` to other tables over the scale's own. By
        default the column is the split's, and the method that of the row."""
        where, seed, method = self.where, self.seed, method or ROWS[row]
        plain = self.scale.experiment(where, method, seed, {}, {})
        experiment = self.scale.experiment(where, method, seed, fields or {}, changes or {})
        column = where.split if column is None else column
        return RecipeCell(where.dataset, row, column, seed, where, plain, experiment)


@dataclass(frozen=True)
class SearchedRow:
    """A row of which the best column is the answer."""

    row: str
    method: str
    axes: Sequence[Axis]
    changes: Tables = field(default_factory=dict)  # in all its trials


def values_of(label: str) -> tuple[float, ...]:
    """The values of a trial, from the label of its column."""
    return tuple(map(float, label.split(", ")))


@dataclass(frozen=True)
class Choice:
    """What a search chose in a row: the values with the highest mean EMA, of those with most
    seeds."""

    values: tuple[float, ...]
    trials: int
    seeds: int
    edges: Sequence[int]  # the axes on which nothing was tried on one side of it

    @classmethod
    def of(cls, tried: Mapping[str, Sequence[float]]) -> Choice | None:
        """Of the EMA of each seed, by the label of the column."""
        seeds = max(map(len, tried.values()), default=0)
        means = {
            values_of(label): fmean(own) for label, own in tried.items() if 0 < len(own) == seeds
        }
        best = max(means, key=means.__getitem__, default=())
        return cls(best, len(means), seeds, edges(best, means)) if means else None


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    question: str
    places: Sequence[Where]
    trained: Callable[[CellFactory], Iterator[RecipeCell]]  # in each place, with each seed
    columns: str = "split"  # what the columns are
    published: str = ""  # the table of the paper that has the same rows, blocks and columns
    picture: str = ""  # "lines" over the columns, or "similarity"
    searched: Callable[[], Iterator[SearchedRow]] | None = None  # each with the scale's trials

    def cells(
        self, scale: Scale, seeds: Sequence[int], score: Score = lambda cell: None
    ) -> Iterator[RecipeCell]:
        """The cells, of a search those that follow from what `score` knows."""
        alphas = scale.more_alphas if self.published else ()
        more = (replace(where, alpha=alpha) for where in self.places for alpha in alphas)
        for where in dict.fromkeys((*self.places, *more)):
            factories = [CellFactory(scale, where, seed) for seed in seeds]
            for at in factories:
                yield from self.trained(at)
            for row in self.searched() if self.searched else ():
                yield from self._tried(row, factories, score)

    def _tried(
        self, row: SearchedRow, factories: Sequence[CellFactory], score: Score
    ) -> Iterator[RecipeCell]:
        def cells_of(settings: Point) -> list[RecipeCell]:
            label = ", ".join(f"{value:g}" for value in settings.values())
            changes = merge(row.changes, tables_of(settings))
            return [at.cell(row.row, label, row.method, changes=changes) for at in factories]

        def mean(cells: Sequence[RecipeCell]) -> float | None:
            known = [one for one in map(score, cells) if one is not None]
            return fmean(known) if len(known) == len(cells) else None

        trials = NeighbourSearch(row.axes).tried(factories[0].scale.trials, cells_of, mean)
        for cells in trials.values():
            yield from cells
