"""What a sweep or a comparison would cost: `--plan`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from dcfl.cli.options import print_json
from dcfl.cli.terminal import duration, megabytes, new_table, short_duration, stdout
from dcfl.comparisons.cell_costs import PlannedCosts, planned_costs
from dcfl.comparisons.cells import CellFolder
from dcfl.comparisons.comparison import ComparisonPlan
from dcfl.comparisons.crew import processes_for
from dcfl.comparisons.space import plain
from dcfl.comparisons.sweeping import SweepPlan
from dcfl.errors import DatasetMissing
from dcfl.paper.results import Results
from dcfl.report.text import plural
from dcfl.system.wording import printable, say

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
    plans: Sequence[Results], chosen: Collection[str], seconds: Seconds
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
    """What is left of the cells of each row and column, which differ in their seed alone."""
    rows, names = (list(dict.fromkeys(place[axis] for place in places)) for axis in (0, 1))
    table = new_table(corner, *names)
    for row in rows:
        table.add_row(row, *(left_of(places.get((row, name), []), seconds) for name in names))
    return table


def left_of(cells: Sequence[CellFolder[Any]], seconds: Seconds) -> str:
    """The time that is left, or the rounds if that is not known."""
    if not cells:
        return ""
    failed, ended = sum(bool(cell.failed) for cell in cells), sum(cell.ended for cell in cells)
    if ended == len(cells):
        return f"{failed} failed" if failed else "done"
    left = f"{sum(cell.rounds_left for cell in cells):,}"
    if seconds is not None:
        left = short_duration(sum(seconds.get(cell.name, 0.0) for cell in cells))
    return f"{left} ({ended} of {len(cells)} done)" if ended else left


def print_sweep_plan(planned: SweepPlan, parallel: int, as_json: bool) -> None:
    planned.check()
    trials, seeds = len(planned.planned), len(planned.trials.seeds)
    tested = ", then the chosen setting" if planned.chosen_todo else ""
    what = f"{plural(trials, 'trial')} with {plural(seeds, 'seed')}{tested}"
    todo = [*planned.todo, *planned.chosen_todo]
    costs = cost_if_known(lambda: _sweep_costs(planned, parallel), what)
    if as_json:
        print_json({"trials": trials, "seeds": seeds, **_as_json(todo, costs)})
        return
    seconds = costs.by_cell if costs else None
    print(_title("trial", seeds, seconds))
    stdout.print(_trials_table(planned, seconds))
    _print_total(what, todo, costs)


def print_comparison_plan(planned: ComparisonPlan, parallel: int, as_json: bool) -> None:
    planned.check()
    (trials, compared), todo = planned.expected, planned.todo
    searched = f"{plural(len(trials), 'trial')}, then " if trials else ""
    what = searched + plural(len(compared), "run")
    costs = cost_if_known(lambda: measured(todo, processes_for(todo, parallel)), what)
    if as_json:
        print_json({"trials": len(trials), "runs": len(compared), **_as_json(todo, costs)})
        return
    places: dict[tuple[str, str], list[CellFolder[Any]]] = {}
    for cell in (*trials, *compared):
        experiment = cell.cell.experiment
        kind = experiment.federation.baseline
        name = experiment.method.name if kind == "none" else f"baseline: {kind}"
        column = "trials" if cell in trials else f"seed {experiment.federation.seed}"
        places.setdefault((name, column), []).append(cell)
    seconds = costs.by_cell if costs else None
    print(_title("run", 1, seconds))
    stdout.print(grid("method", places, seconds))
    _print_total(what, todo, costs)


def _sweep_costs(planned: SweepPlan, parallel: int) -> PlannedCosts:
    """The runs of the chosen setting wait for all trials, and may be fewer than processes."""
    first, last = planned.todo, planned.chosen_todo
    costs = measured([*first, *last], processes_for([*first, *last], parallel))
    needed = [sum(costs.by_cell[cell.name] for cell in cells) for cells in (first, last)]
    together = min(costs.processes, len(last)) or 1
    return replace(costs, seconds=needed[0] / max(costs.processes, 1) + needed[1] / together)


def _trials_table(planned: SweepPlan, seconds: Seconds) -> Table:
    """A grid where it has two lists; else a row for each trial."""
    space = planned.space
    if len(space.keys) == 2:
        down, across = space.keys
        places = {
            (plain(trial.point[down]), f"{across} = {plain(trial.point[across])}"): trial.cells
            for trial in planned.planned
        }
        return grid(down, places, seconds)
    table = new_table("trial", *space.keys, "left")
    for trial in planned.planned:
        values = [plain(trial.point[key]) for key in space.keys]
        table.add_row(str(trial.number), *values, left_of(trial.cells, seconds))
    return table


def _title(one: str, seeds: int, seconds: Seconds) -> str:
    what = "rounds" if seconds is None else "time"
    return f"{what} left of each {one}{f', {seeds} seeds together' if seeds > 1 else ''}"


def _print_total(what: str, todo: Sequence[CellFolder[Any]], costs: PlannedCosts | None) -> None:
    if not todo:
        print(f"{what}: nothing left to do")
    elif costs is not None:
        print(
            f"{what}: about {duration(costs.seconds)} and {megabytes(costs.peak_bytes)} "
            f"of memory with {costs.processes} at a time"
        )


def _as_json(todo: Sequence[CellFolder[Any]], costs: PlannedCosts | None) -> dict[str, Any]:
    """Without the data, what has to be measured is null."""
    return {
        "runs_to_do": len(todo),
        "rounds_left": {cell.name: cell.rounds_left for cell in todo},
        "seconds": costs and costs.seconds,
        "peak_bytes": costs and costs.peak_bytes,
        "processes": costs and costs.processes,
        "by_run": costs and costs.by_cell,
    }
