"""What a reproduction would cost, as the grid that its results will have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.table import Table

from dcfl.cli.terminal import new_table, short_duration
from dcfl.studies.cells.cell_folders import CellFolder
from dcfl.studies.recipes.plans import RecipePlan
from dcfl.studies.recipes.recipe import Cell


def plan_tables(
    plans: Sequence[RecipePlan], chosen: Collection[str], seconds: Mapping[str, float] | None
) -> Iterator[tuple[str, Table]]:
    """A title and a table for each recipe and data set, of the cells with the `chosen` names.
    `seconds`: what each of them will take; None: nobody knows."""
    what = "rounds" if seconds is None else "time"
    for plan in plans:
        cells = [cell for cell in plan.cells if cell.name in chosen]
        for block in dict.fromkeys(cell.cell.block for cell in cells):
            inside = [cell for cell in cells if cell.cell.block == block]
            seeds = len({cell.cell.seed for cell in inside})
            several = f", {seeds} seeds together" if seeds > 1 else ""
            title = f"{plan.recipe.title}, {block}: {what} left{several}"
            yield title, _grid(plan.recipe.columns, inside, seconds)


def _grid(
    columns: str, cells: Sequence[CellFolder[Cell]], seconds: Mapping[str, float] | None
) -> Table:
    """Cells that differ in their seed alone share a place."""
    places: dict[tuple[str, str], list[CellFolder[Cell]]] = {}
    for cell in cells:
        places.setdefault((cell.cell.row, cell.cell.column), []).append(cell)
    rows, names = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
    table = new_table(columns, *names)
    for row in rows:
        table.add_row(row, *(_place(places.get((row, name), []), seconds) for name in names))
    return table


def _place(cells: Sequence[CellFolder[Cell]], seconds: Mapping[str, float] | None) -> str:
    if not cells:
        return ""
    failed, ended = sum(bool(cell.failed) for cell in cells), sum(cell.ended for cell in cells)
    if ended == len(cells):
        return f"{failed} failed" if failed else "done"
    left = f"{sum(cell.rounds_left for cell in cells):,}"
    if seconds is not None:
        left = short_duration(sum(seconds.get(cell.name, 0.0) for cell in cells))
    return f"{left} ({ended} of {len(cells)} done)" if ended else left
