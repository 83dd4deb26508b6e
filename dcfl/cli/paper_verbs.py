"""`dcfl reproduce` and `dcfl theory`: the paper."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import (
    AsJSON,
    FiguresFolder,
    OutFolder,
    Parallel,
    PlanOnly,
    print_json,
    whole_numbers,
)
from dcfl.errors import ConfigError, TooFewClients
from dcfl.system.processes import stopped_by_signals
from dcfl.system.wording import printable, say

if TYPE_CHECKING:
    from dcfl.comparisons.cell_costs import PlannedCosts
    from dcfl.comparisons.cells import CellFolder
    from dcfl.paper.recipe import RecipeCell
    from dcfl.paper.results import Results


Dimensions = Annotated[
    str,
    typer.Option(metavar="D,...", help="Dimensions of the space whose unit sphere holds features."),
]
Negatives = Annotated[str, typer.Option(metavar="M,...", help="Numbers of negatives.")]


def theory(
    temperature: Annotated[float, typer.Option(help="τ of the loss.")] = 0.5,
    dimension: Dimensions = "3,128",
    samples: Negatives = "4,8,16,32,64,128,256,512,1024,2048",
    repetitions: Annotated[int, typer.Option(help="Draws of the loss for each M.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    as_json: AsJSON = False,
) -> None:
    """Measure the paper's theorem: the loss with M negatives, its limit."""
    from dcfl.cli.tables import plain_table
    from dcfl.cli.terminal import stdout
    from dcfl.paper.theory import finding, measure_theory, tables_of

    dimensions = whole_numbers(dimension, "--dimension")
    negatives = whole_numbers(samples, "--samples")
    studies = measure_theory(temperature, dimensions, negatives, repetitions, seed)
    if as_json:
        numbers = [study.as_json() for study in studies]
        print_json({"repetitions": repetitions, "seed": seed, "studies": numbers})
        return
    for study in studies:
        for table in tables_of(study):
            stdout.print(plain_table(table))
            stdout.print(f"{table.note}\n")
        stdout.print(f"{finding(study)}\n")


RecipeName = Annotated[
    str | None, typer.Argument(metavar="NAME", show_default=False, help="A recipe, or `all`.")
]
RecipeSettings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        show_default=False,
        help="Settings on top, such as data.path=DIR or engine.device=cuda; a method's field "
        "such as method.temperature=0.1 for the methods that have it.",
    ),
]
ScaleName = Annotated[
    str, typer.Option(metavar="smoke|mini|pretrained|paper", help="How big; `mini` takes a night.")
]
Seeds = Annotated[str, typer.Option(metavar="0,1,2", help="One run of each cell per seed.")]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", help="Only cells with this in their name; may be repeated."),
]
Train = Annotated[
    bool, typer.Option("--train/--no-train", help="Train, or only write what is finished.")
]


def reproduce(
    name: RecipeName = None,
    settings: RecipeSettings = None,
    scale: ScaleName = "mini",
    seeds: Seeds = "",
    only: Only = None,
    parallel: Parallel = 0,
    plan: PlanOnly = False,
    train: Train = True,
    out: OutFolder = None,
    figures: FiguresFolder = None,
    as_json: AsJSON = False,
) -> None:
    """Repeat a table of the paper; without a name, list them.

    Finished cells are not trained again; interrupted ones continue where they stopped.
    """
    from dcfl.paper.plans import chosen_cells
    from dcfl.system.locks import locked
    from dcfl.system.storage import require_no_way_out, storage

    if name is None:
        _list_recipes(as_json)
        return
    folder = out or Path("runs") / "reproduce" / scale
    plans = _plans(name, scale, seeds, settings or (), folder)
    cells = chosen_cells(plans, only or ())
    if plan:
        _print_plan(plans, cells, parallel, as_json)
        return
    with storage(folder):  # fails now rather than after the first hour
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    require_no_way_out(folder)
    with locked(folder) if train else nullcontext():
        failures = 0
        while train:
            failures += _train(cells, _announce_cost(cells, parallel).processes)
            plans, before = _plans(name, scale, seeds, settings or (), folder), len(cells)
            cells = chosen_cells(plans, only or ())
            train = len(cells) > before  # a search goes on from what it found
        _write_results(plans, folder, figures, as_json)
    if failures:
        raise typer.Exit(TooFewClients.exit_code)


def _list_recipes(as_json: bool) -> None:
    from dcfl.paper.recipe_book import RECIPES

    if as_json:
        print_json({recipe.name: recipe.title for recipe in RECIPES.values()})
        return
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        print(f"{recipe.name:<{width}}  {recipe.title}")
    print(f"{'all':<{width}}  all of these")


def _plans(
    name: str, scale_name: str, seeds: str, settings: Sequence[str], folder: Path
) -> list[Results]:
    from dcfl.paper.plans import plan_recipe
    from dcfl.paper.recipe_book import RECIPES
    from dcfl.paper.scales import SCALES

    if name != "all" and name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; known: {', '.join(RECIPES)}, all")
    if scale_name not in SCALES:
        raise ConfigError(f"--scale {scale_name}: must be one of {', '.join(SCALES)}")
    scale = SCALES[scale_name]
    asked = list(dict.fromkeys(whole_numbers(seeds))) if seeds else []
    recipes = RECIPES.values() if name == "all" else [RECIPES[name]]
    usual = {r.name: scale.search_seeds if r.searched else scale.seeds for r in recipes}
    return [plan_recipe(r, scale, asked or usual[r.name], settings, folder) for r in recipes]


def _announce_cost(cells: Sequence[CellFolder[RecipeCell]], parallel: int) -> PlannedCosts:
    """Print the cost of what is left to do."""
    from dcfl.cli.plans import measured
    from dcfl.cli.terminal import duration, megabytes
    from dcfl.comparisons.cell_costs import PlannedCosts
    from dcfl.comparisons.crew import useful_processes

    todo = [cell for cell in cells if not cell.ended]
    if not todo:
        say(f"{len(cells)} cells, nothing left to do")
        return PlannedCosts({}, 0.0, 0, 0)
    processes = parallel or useful_processes(todo[0].cell.experiment.engine.threads)
    costs = measured(todo, min(processes, len(todo)))
    say(
        f"{len(cells)} cells, {len(cells) - len(todo)} finished; {len(todo)} to do take about "
        f"{duration(costs.seconds)} and {megabytes(costs.peak_bytes)} of memory with "
        f"{costs.processes} at a time (short rounds of each kind were measured)"
    )
    return costs


def _print_plan(
    plans: Sequence[Results],
    cells: Sequence[CellFolder[RecipeCell]],
    parallel: int,
    as_json: bool,
) -> None:
    from dcfl.cli.plans import cost_if_known, plan_tables
    from dcfl.cli.terminal import stdout

    costs = cost_if_known(lambda: _announce_cost(cells, parallel), f"{len(cells)} cells")
    if as_json:
        plan = {}
        for cell in cells:
            seconds = costs and costs.by_cell.get(cell.name, 0.0)
            plan[cell.name] = {"rounds_left": cell.rounds_left, "seconds": seconds}
        print_json(plan)
        return
    names = {cell.name for cell in cells}
    for title, table in plan_tables(plans, names, costs.by_cell if costs else None):
        print(printable(title))
        stdout.print(table)
        print()
    for cell in cells:
        if cell.failed:
            print(printable(f"{cell.name}  failed: {cell.failed}"))


def _train(cells: Sequence[CellFolder[RecipeCell]], processes: int) -> int:
    """Train the cells that have not ended; returns how many failed."""
    from dcfl.comparisons.crew import Runner, followed
    from dcfl.runs.progress import Progress

    todo = [cell for cell in cells if not cell.ended]
    if not todo:
        return 0
    runner = Runner(todo, min(processes, len(todo)))
    with stopped_by_signals(runner.stop):
        news = list(followed(runner, Progress(todo).after))
    return sum(one.state == "failed" for one in news)


def _write_results(
    all_results: Sequence[Results], folder: Path, figures: Path | None, as_json: bool
) -> None:
    from dcfl.comparisons.cells import FAILED
    from dcfl.paper.reproduction_files import plain_results, write_results, write_similarity

    written = [path for results in all_results for path in write_results(results, folder, figures)]
    for results in all_results:  # last, because it needs the data again
        if results.recipe.picture == "similarity":
            written += write_similarity(results, folder, figures)
    if as_json:
        recipes = {results.recipe.name: plain_results(results) for results in all_results}
        print_json({"recipes": recipes, "files": [str(path) for path in written]})
        return
    for results in all_results:
        print(f"{results.recipe.name}: {len(results.finished)} of {len(results.cells)} cells")
        for name, reason in results.failures.items():
            print(printable(f"  {name} failed: {reason} (without its {FAILED} it is tried again)"))
    for path in written:
        if path.suffix in (".md", ".html"):
            print(printable(path))
