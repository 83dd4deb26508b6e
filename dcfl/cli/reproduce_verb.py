"""`dcfl reproduce`: the verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dcfl.cli.options import AsJSON, print_json
from dcfl.errors import ConfigError, Interrupted
from dcfl.system.printable import printable
from dcfl.system.processes import stopped_by_signals

if TYPE_CHECKING:
    from dcfl.studies.recipes.cells import Kept
    from dcfl.studies.recipes.paper import Cell, Recipe
    from dcfl.studies.recipes.results import Results


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", show_default=False, help="A recipe, or `all`."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            show_default=False,
            help="Settings on top, such as data.path=DIR or engine.device=cuda; a method's field "
            "such as method.temperature=0.1 for the methods that have it.",
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(metavar="smoke|small|paper", help="How big; `small` is a night.")
    ] = "small",
    seeds: Annotated[
        str, typer.Option(metavar="0,1,2", help="One run of each cell per seed.")
    ] = "",
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only cells with this in their name; may be repeated."),
    ] = None,
    parallel: Annotated[
        int, typer.Option(min=0, help="Cells at the same time; 0: as many as there are cores.")
    ] = 0,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would cost, and stop.")] = False,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Or only write what is finished.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the cells and tables are kept."),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """A table or figure of the paper, ours beside theirs. Without a name: what there is.

    What is finished is not done again; what was stopped goes on where it was.
    """
    from dcfl.studies.recipes.cells import chosen
    from dcfl.studies.recipes.paper import RECIPES
    from dcfl.system.locks import locked
    from dcfl.system.storage import storage

    if name is None:
        _list_recipes(as_json)
        return
    recipes = list(RECIPES.values()) if name == "all" else [_known(name)]
    folder = out or Path("runs") / "reproduce" / scale
    plans = {recipe.name: _planned(recipe, scale, seeds) for recipe in recipes}
    asked = {
        recipe.name: _kept(recipe, plans[recipe.name], words or (), folder) for recipe in recipes
    }
    every = {kept.cell.name: kept for cells in asked.values() for kept in cells}
    for kept in every.values():
        kept.check()
    wanted = chosen([kept.cell for kept in every.values()], only or ())
    todo = [every[cell.name] for cell in wanted if not every[cell.name].ended]
    if plan:
        _cost(len(wanted), todo, parallel)
        _show_plan([every[cell.name] for cell in wanted], as_json)
        return
    with storage(folder):  # rather now than after the first hour
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    with locked(folder) if train else nullcontext():
        failures = _train(todo, _cost(len(wanted), todo, parallel)) if train else 0
        results = [
            _results(recipe, scale, plans[recipe.name], asked[recipe.name], words or ())
            for recipe in recipes
        ]
        _write(results, folder, as_json)
    if failures:
        raise typer.Exit(4)


def _list_recipes(as_json: bool) -> None:
    from dcfl.studies.recipes.paper import RECIPES

    if as_json:
        print_json({recipe.name: recipe.title for recipe in RECIPES.values()})
        return
    width = max(map(len, RECIPES))
    for recipe in RECIPES.values():
        print(f"{recipe.name:<{width}}  {recipe.title}")
    print(f"{'all':<{width}}  all of these")


def _known(name: str) -> Recipe:
    from dcfl.studies.recipes.paper import RECIPES

    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; known: {', '.join(RECIPES)}, all")
    return RECIPES[name]


def _planned(recipe: Recipe, scale: str, seeds: str) -> list[Cell]:
    from dcfl.cli.options import whole_numbers
    from dcfl.studies.recipes.scales import SCALES

    if scale not in SCALES:
        raise ConfigError(f"--scale {scale}: must be one of {', '.join(SCALES)}")
    chosen = SCALES[scale]
    numbers = list(dict.fromkeys(whole_numbers(seeds) if seeds else chosen.seeds))
    return list(recipe.cells(chosen, numbers))


def _kept(
    recipe: Recipe, planned: Sequence[Cell], words: Sequence[str], folder: Path
) -> list[Kept]:
    from dcfl.studies.recipes.cells import Kept
    from dcfl.studies.recipes.changes import with_words

    cells = with_words(recipe, planned, words)
    return [Kept(cell, folder / "cells" / cell.name) for cell in cells]


def _cost(wanted: int, todo: Sequence[Kept], parallel: int) -> int:
    """Say it, and return how many processes there will be."""
    from dcfl.studies.recipes.cells import Costs
    from dcfl.studies.recipes.parallel import useful_processes

    done = wanted - len(todo)
    if not todo:
        print(f"{wanted} cells, nothing left to do", file=sys.stderr)
        return 0
    processes = parallel or useful_processes(todo[0].cell.experiment.engine.threads)
    processes = min(processes, len(todo))
    costs = Costs()
    total = sum(costs.of(kept) for kept in todo)
    print(
        f"{wanted} cells, {done} finished; {len(todo)} to do take about "
        f"{_duration(total / processes)} with {processes} at a time "
        f"(an epoch of one client and part of an evaluation were measured)",
        file=sys.stderr,
        flush=True,
    )
    return processes


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _show_plan(cells: Sequence[Kept], as_json: bool) -> None:
    if as_json:
        print_json({kept.cell.name: {"rounds_left": kept.rounds_left} for kept in cells})
        return
    for kept in cells:
        state = "finished" if kept.finished else f"{kept.rounds_left} rounds to do"
        state = f"failed: {kept.failed}" if kept.failed else state
        print(printable(f"{kept.cell.name}  {state}"))


def _train(todo: Sequence[Kept], processes: int) -> int:
    """All cells that are not done; returns how many failed."""
    from dcfl.studies.recipes.parallel import Runner
    from dcfl.studies.recipes.progress import Progress

    if not todo:
        return 0
    runner = Runner(todo, processes)
    shown, failures, stopped = Progress(todo), 0, False
    with stopped_by_signals(runner.stop):
        for news in runner.news():
            shown.after(news)
            failures += news.state == "failed"
            stopped |= news.state == "stopped"
        if stopped or runner.stopping:
            raise Interrupted("stopped; the same command goes on from here")
    return failures


def _results(
    recipe: Recipe,
    scale: str,
    planned: Sequence[Cell],
    cells: Sequence[Kept],
    words: Sequence[str],
) -> Results:
    from dcfl.studies.recipes.cells import Kept
    from dcfl.studies.recipes.changes import confession
    from dcfl.studies.recipes.results import Results
    from dcfl.studies.recipes.scales import SCALES

    read_again = [Kept(kept.cell, kept.folder) for kept in cells]
    changes = confession(planned, [kept.cell for kept in cells], words)
    return Results(recipe, SCALES[scale], read_again, changes)


def _write(all_results: Sequence[Results], folder: Path, as_json: bool) -> None:
    from dcfl.studies.recipes.cells import FAILED
    from dcfl.studies.recipes.order_page import order_section
    from dcfl.studies.recipes.reproduction_page import (
        combined_contests,
        plain_results,
        write_results,
    )
    from dcfl.studies.recipes.similarity_page import write_similarity
    from dcfl.system.storage import write_whole

    written = [path for results in all_results for path in write_results(results, folder)]
    order = ""
    if len(all_results) > 1:
        published = [results for results in all_results if results.recipe.published]
        tables = order_section(combined_contests(published)).tables
        order = "\n\n".join(table.markdown() for table in tables)
        write_whole(folder / "order.md", order + "\n")
        written.append(folder / "order.md")
    for results in all_results:  # last, because it needs the data again
        if results.recipe.picture == "similarity":
            written += write_similarity(results, folder)
    if as_json:
        recipes = {results.recipe.name: plain_results(results) for results in all_results}
        print_json({"recipes": recipes, "files": [str(path) for path in written]})
        return
    for results in all_results:
        print(f"{results.recipe.name}: {results.finished} of {len(results.cells)} cells")
        for name, why in results.failures.items():
            print(printable(f"  {name} failed: {why} (without its {FAILED} it is tried again)"))
    if order:
        print(order)
    for path in written:
        if path.suffix in (".md", ".html"):
            print(printable(path))
