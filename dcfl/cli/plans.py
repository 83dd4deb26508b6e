"""What a sweep or a comparison would cost: `--plan`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
Places = Mapping[tuple[str, str], Sequence[CellFolder[Any]]]  # by row and column


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


def grid(corner: str, places: Places, seconds: Seconds) -> Table:
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
    counts = {"trials": trials, "seeds": seeds}
    todo = [*planned.todo, *planned.chosen_todo]
    _print(what, f"each trial{several}", corner, places, todo, counts, parallel, as_json)


def print_comparison_plan(planned: ComparisonPlan, parallel: int, as_json: bool) -> None:
    planned.check()
    trials, compared = planned.expected
    searched = f"{plural(len(trials), 'trial')}, then " if trials else ""
    what = searched + plural(len(compared), "run")
    of_trials = {cell.name for cell in trials}
    places: dict[tuple[str, str], list[CellFolder[Any]]] = {}
    for cell in (*trials, *compared):
        experiment = cell.cell.experiment
        kind = experiment.federation.baseline
        name = experiment.method.name if kind == "none" else f"baseline: {kind}"
        column = "trials" if cell.name in of_trials else f"seed {experiment.federation.seed}"
        places.setdefault((name, column), []).append(cell)
    counts = {"trials": len(trials), "runs": len(compared)}
    _print(what, "each run", "method", places, planned.todo, counts, parallel, as_json)


def _print(
    what: str,
    each: str,
    corner: str,
    places: Places,
    todo: Sequence[CellFolder[Any]],
    counts: Mapping[str, int],
    parallel: int,
    as_json: bool,
) -> None:
    """Without the data, what has to be measured is null."""
    costs = cost_if_known(lambda: measured(todo, processes_for(todo, parallel)), what)
    if as_json:
        left = {"rounds_left": {cell.name: cell.rounds_left for cell in todo}}
        known = {
            "seconds": costs and costs.seconds,
            "peak_bytes": costs and costs.peak_bytes,
            "processes": costs and costs.processes,
            "by_run": costs and costs.by_cell,
        }
        print_json({**counts, "runs_to_do": len(todo), **left, **known})
        return
    print(f"{'rounds' if costs is None else 'time'} left of {each}")
    stdout.print(grid(corner, places, costs.by_cell if costs else None))
    if not todo:
        print(f"{what}: nothing left to do")
    elif costs is not None:
        print(
            f"{what}: about {duration(costs.seconds)} and {megabytes(costs.peak_bytes)} "
            f"of memory with {costs.processes} at a time"
        )
