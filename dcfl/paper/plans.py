"""A recipe at one scale: its cells with the user's settings, where they are kept, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from dcfl.comparisons.cells import CellFolder, require_few
from dcfl.comparisons.groups import Outcome
from dcfl.config import Tables, apply, as_tables, parse_settings
from dcfl.errors import ConfigError
from dcfl.paper.recipe import Recipe, RecipeCell
from dcfl.paper.results import Results
from dcfl.paper.scales import Scale
from dcfl.runs.identity import flat, kind_of


def with_settings(
    recipe: Recipe, cells: Sequence[RecipeCell], settings: Sequence[str]
) -> list[RecipeCell]:
    """The cells with these settings; a method's field only where the method has it."""
    changes = parse_settings(settings)
    if changes:
        _refuse_what_the_recipe_sets(recipe, cells, changes)
    _refuse_unknown_fields(recipe, cells, changes)
    return [_with_changes(cell, changes) for cell in cells]


def _with_changes(cell: RecipeCell, changes: Tables) -> RecipeCell:
    return replace(cell, experiment=apply(cell.experiment, _for_cell(cell, changes)))


def described_changes(
    before: Sequence[RecipeCell], after: Sequence[RecipeCell], settings: Sequence[str]
) -> list[str]:
    """Each setting that can change a result, with the rows that it changed if not all of them."""
    changes = []
    for setting in dict.fromkeys(settings):
        ((key, _),) = flat(parse_settings([setting])).items()
        if kind_of(key) != "result":
            continue
        pairs = zip(before, after, strict=True)
        rows = {new.row for old, new in pairs if _value(old, key) != _value(new, key)}
        if rows == {cell.row for cell in after}:
            changes.append(setting)
        elif rows:
            in_order = dict.fromkeys(cell.row for cell in after if cell.row in rows)
            changes.append(f"{setting} ({', '.join(in_order)})")
    return changes


def _for_cell(cell: RecipeCell, changes: Tables) -> Tables:
    known = _fields(cell)
    method = {key: value for key, value in changes.get("method", {}).items() if key in known}
    other_tables = {name: table for name, table in changes.items() if name != "method"}
    return {**other_tables, "method": method} if method else other_tables


def _fields(cell: RecipeCell) -> list[str]:
    return [field.name for field in fields(cell.experiment.method)]


def _refuse_unknown_fields(recipe: Recipe, cells: Sequence[RecipeCell], changes: Tables) -> None:
    known = {name for cell in cells for name in _fields(cell)}
    for key in changes.get("method", {}):
        if key not in known:
            raise ConfigError(
                f"method.{key}: no method of the recipe {recipe.name} has such a field; "
                f"known: {', '.join(sorted(known))}"
            )


def _refuse_what_the_recipe_sets(
    recipe: Recipe, cells: Sequence[RecipeCell], changes: Tables
) -> None:
    """The settings in which a recipe's cells differ, and those that place a cell in its tables, are
    not the user's to change."""
    place = {"method.name", "output.dir", *flat(cells[0].where.tables)}
    for key in flat(changes):
        # Method by method: two may have a field in common, and a scale may give one its own head.
        values: dict[str, set[str]] = {}
        for cell in cells:
            values.setdefault(cell.experiment.method.name, set()).add(str(_value(cell, key)))
        differ = any(len(of_method) > 1 for of_method in values.values())
        if differ or key in place or kind_of(key) == "seed":
            raise ConfigError(
                f"{key} is for the recipe {recipe.name} to choose: its tables would not be true"
            )


def _value(cell: RecipeCell, key: str) -> Any:
    return flat(as_tables(cell.experiment)).get(key)


@dataclass(frozen=True)
class RecipePlan:
    recipe: Recipe
    scale: Scale
    settings: Sequence[str]  # KEY=VALUE, on top of the scale's own
    unchanged: Sequence[RecipeCell]  # without those settings
    cells: Sequence[CellFolder[RecipeCell]]

    def results(self) -> Results:
        """Reads the folders again: cells may have been trained since they were first read."""
        changed = [cell_folder.cell for cell_folder in self.cells]
        read_again = [CellFolder(cell.cell, cell.path) for cell in self.cells]
        changes = described_changes(self.unchanged, changed, self.settings)
        return Results(self.recipe, self.scale, read_again, changes)


def plan_recipe(
    recipe: Recipe, scale: Scale, seeds: Sequence[int], settings: Sequence[str], folder: Path
) -> RecipePlan:
    """The cells of a recipe in a folder, whose finished ones decide what a search tries next."""

    def kept(cell: RecipeCell) -> CellFolder[RecipeCell]:
        return CellFolder(cell, folder / "cells" / cell.name)

    def score(cell: RecipeCell) -> float | None:
        trial = kept(_with_changes(cell, changes))
        if trial.finished and trial.run is not None:
            return Outcome.of(trial.run).ema_accuracy
        return -inf if trial.failed else None

    require_few(len(seeds), sum(1 for _ in recipe.cells(scale, seeds[:1])))
    changes = parse_settings(settings)
    unchanged = list(recipe.cells(scale, seeds, score))
    cells = [kept(cell) for cell in with_settings(recipe, unchanged, settings)]
    return RecipePlan(recipe, scale, settings, unchanged, cells)


def chosen_cells(plans: Sequence[RecipePlan], only: Sequence[str]) -> list[CellFolder[RecipeCell]]:
    """The cells of all plans, each once; checked, and narrowed to those whose name contains one of
    the texts of `only`."""
    unique = {cell.name: cell for plan in plans for cell in plan.cells}
    for cell in unique.values():
        cell.check()
    for text in only:
        if not any(text in name for name in unique):
            raise ConfigError(
                f"--only {text}: no such cell; the first is {next(iter(unique))}, and "
                f"`--plan --json` names all {len(unique)}"
            )
    chosen = only or [""]  # which is in every name
    return [cell for name, cell in unique.items() if any(text in name for text in chosen)]
