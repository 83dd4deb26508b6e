"""What many runs would cost, as the grid that their results will have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from dcfl.cli.terminal import new_table, short_duration
from dcfl.errors import DatasetMissing
from dcfl.studies.cells.cell_costs import PlannedCosts, planned_costs
from dcfl.studies.cells.cell_folders import CellFolder
from dcfl.studies.recipes.plans import RecipePlan
from dcfl.system.printable import printable
from dcfl.system.saying import say

Seconds = Mapping[str, float] | None  # by name, what each will take; None: nobody knows


def measured(todo: Sequence[CellFolder[Any]], processes: int) -> PlannedCosts:
    return planned_costs(todo, processes, lambda text: say(printable(text)))


def cost_if_known(measure: Callable[[], PlannedCosts], what: str) -> PlannedCosts | None:
    """A plan needs no data, though nothing can be measured without it."""
    try:
        return measure()
    except DatasetMissing as error:
        say(printable(f"{what}; how long they take is not known: {error}"))
        return None


def plan_tables(
    plans: Sequence[RecipePlan], chosen: Collection[str], seconds: Seconds
) -> Iterator[tuple[str, Table]]:
    """A title and a table for each recipe and data set, of the cells with the `chosen` names."""
    what = "rounds" if seconds is None else "time"
    for plan in plans:
        cells = [cell for cell in plan.cells if cell.name in chosen]
        for block in dict.fromkeys(cell.cell.block for cell in cells):
            inside = [cell for cell in cells if cell.cell.block == block]
            seeds = len({cell.cell.seed for cell in inside})
            several = f", {seeds} seeds together" if seeds > 1 else ""
            places: dict[tuple[str, str], list[CellFolder[Any]]] = {}
            for cell in inside:
                places.setdefault((cell.cell.row, cell.cell.column), []).append(cell)
            title = f"{plan.recipe.title}, {block}: {what} left{several}"
            yield title, grid(plan.recipe.columns, places, seconds)


def grid(
    corner: str, places: Mapping[tuple[str, str], Sequence[CellFolder[Any]]], seconds: Seconds
) -> Table:
    """By row and column, what is left of the cells there: they differ in their seed alone."""
    rows, names = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
    table = new_table(corner, *names)
    for row in rows:
        table.add_row(row, *(left_of(places.get((row, name), []), seconds) for name in names))
    return table


def left_of(cells: Sequence[CellFolder[Any]], seconds: Seconds) -> str:
    """Time, or rounds if that is not known."""
    if not cells:
        return ""
    failed, ended = sum(bool(cell.failed) for cell in cells), sum(cell.ended for cell in cells)
    if ended == len(cells):
        return f"{failed} failed" if failed else "done"
    left = f"{sum(cell.rounds_left for cell in cells):,}"
    if seconds is not None:
        left = short_duration(sum(seconds.get(cell.name, 0.0) for cell in cells))
    return f"{left} ({ended} of {len(cells)} done)" if ended else left
