"""What is left to do of a sweep, a comparison or a recipe: `--plan`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from dcfl.cli.options import print_json
from dcfl.cli.terminal import new_table, stdout
from dcfl.comparisons.cells import CellFolder
from dcfl.comparisons.comparison import ComparisonPlan
from dcfl.comparisons.space import plain
from dcfl.comparisons.sweeping import SweepPlan
from dcfl.paper.results import Results
from dcfl.report.text import plural

Places = Mapping[tuple[str, str], Sequence[CellFolder[Any]]]  # by row and column


def plan_tables(plans: Sequence[Results], chosen: Collection[str]) -> Iterator[tuple[str, Table]]:
    """A title and a table for each recipe and data set, of the cells with the `chosen` names."""
    for plan in plans:
        cells = [cell for cell in plan.cells if cell.name in chosen]
        for block in dict.fromkeys(cell.cell.block for cell in cells):
            inside = [cell for cell in cells if cell.cell.block == block]
            seeds = len({cell.cell.seed for cell in inside})
            several = f", {seeds} seeds together" if seeds > 1 else ""
            places: dict[tuple[str, str], list[CellFolder[Any]]] = {}
            for cell in inside:
                places.setdefault((cell.cell.row, cell.cell.column), []).append(cell)
            title = f"{plan.recipe.title}, {block}: rounds left{several}"
            yield title, grid(plan.recipe.columns, places)


def grid(corner: str, places: Places) -> Table:
    """What is left of the cells of each row and column, which differ in their seed alone."""
    rows, names = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
    table = new_table(corner, *names)
    for row in rows:
        table.add_row(row, *(left_of(places.get((row, name), [])) for name in names))
    return table


def left_of(cells: Sequence[CellFolder[Any]]) -> str:
    if not cells:
        return ""
    failed, ended = sum(bool(cell.failed) for cell in cells), sum(cell.ended for cell in cells)
    if ended == len(cells):
        return f"{failed} failed" if failed else "done"
    left = f"{sum(cell.rounds_left for cell in cells):,}"
    return f"{left} ({ended} of {len(cells)} done)" if ended else left


def print_sweep_plan(planned: SweepPlan, as_json: bool) -> None:
    """A grid where it has two lists; else a row for each trial."""
    planned.check()
    trials, seeds = len(planned.planned), len(planned.trials.seeds)
    tested = ", then the chosen setting" if planned.chosen_todo else ""
    what = f"{plural(trials, 'trial')} with {plural(seeds, 'seed')}{tested}"
    first, *others = planned.space.keys
    places: dict[tuple[str, str], Sequence[CellFolder[Any]]] = {}
    for trial in planned.planned:
        point = {key: plain(value) for key, value in trial.point.items()}
        row, column = ", ".join(point.values()), "left"
        if len(others) == 1:
            row, column = point[first], f"{others[0]} = {point[others[0]]}"
        places[row, column] = trial.cells
    corner = first if len(others) == 1 else ", ".join(planned.space.keys)
    several = f", {seeds} seeds together" if seeds > 1 else ""
    todo = [*planned.todo, *planned.chosen_todo]
    if as_json:
        _print_json({"trials": trials, "seeds": seeds}, todo)
    else:
        _print(what, f"each trial{several}", grid(corner, places), todo)


def print_comparison_plan(planned: ComparisonPlan, as_json: bool) -> None:
    planned.check()
    trials, compared = planned.expected
    searched = f"{plural(len(trials), 'trial')}, then " if trials else ""
    of_trials = {cell.name for cell in trials}
    places: dict[tuple[str, str], list[CellFolder[Any]]] = {}
    for cell in (*trials, *compared):
        experiment = cell.cell.experiment
        kind = experiment.federation.baseline
        name = experiment.method.name if kind == "none" else f"baseline: {kind}"
        column = "trials" if cell.name in of_trials else f"seed {experiment.federation.seed}"
        places.setdefault((name, column), []).append(cell)
    if as_json:
        _print_json({"trials": len(trials), "runs": len(compared)}, planned.todo)
    else:
        what = searched + plural(len(compared), "run")
        _print(what, "each run", grid("method", places), planned.todo)


def _print_json(counts: Mapping[str, int], todo: Sequence[CellFolder[Any]]) -> None:
    left = {cell.name: cell.rounds_left for cell in todo}
    print_json({**counts, "runs_to_do": len(todo), "rounds_left": left})


def _print(what: str, each: str, table: Table, todo: Sequence[CellFolder[Any]]) -> None:
    print(f"rounds left of {each}")
    stdout.print(table)
    left = f"{sum(cell.rounds_left for cell in todo):,} rounds" if todo else "nothing"
    print(f"{what}: {left} left to do")
