"""A recipe at one scale: its cells with the user's settings, and where they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
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
    _check(recipe, cells, changes)
    return [_with_changes(cell, changes) for cell in cells]


def _with_changes(cell: RecipeCell, changes: Tables) -> RecipeCell:
    own, known = dict(changes), _fields(cell)
    method = {key: value for key, value in own.pop("method", {}).items() if key in known}
    return replace(
        cell, experiment=apply(cell.experiment, own | ({"method": method} if method else {}))
    )


def _fields(cell: RecipeCell) -> set[str]:
    return {field.name for field in fields(cell.experiment.method)}


def _check(recipe: Recipe, cells: Sequence[RecipeCell], changes: Tables) -> None:
    """The settings in which a recipe's cells differ, and those that place a cell in its tables, are
    not the user's to change."""
    known = {name for cell in cells for name in (*_fields(cell), "name")}
    place = {"method.name", "output.dir", *flat(cells[0].where.tables)}
    for key in flat(changes):
        section, _, name = key.partition(".")
        # Method by method: two may have a field in common, and a scale may give one its own head.
        values: dict[str, set[str]] = {}
        for cell in cells:
            values.setdefault(cell.experiment.method.name, set()).add(str(_value(cell, key)))
        differ = any(len(of_method) > 1 for of_method in values.values())
        if differ or key in place or kind_of(key) == "seed":
            raise ConfigError(
                f"{key} is for the recipe {recipe.name} to choose: its tables would not be true"
            )
        if section == "method" and name not in known:
            raise ConfigError(
                f"{key}: no method of the recipe {recipe.name} has such a field; "
                f"known: {', '.join(sorted(known))}"
            )


def _value(cell: RecipeCell, key: str) -> Any:
    return flat(as_tables(cell.experiment)).get(key)


def described_changes(
    before: Sequence[RecipeCell], after: Sequence[RecipeCell], settings: Sequence[str]
) -> list[str]:
    """Each setting that can change a result, with the rows that it changed if not all of them."""
    changes = []
    for setting in dict.fromkeys(settings):
        ((key, _),) = flat(parse_settings([setting])).items()
        pairs = zip(before, after, strict=True)
        changed = {new.row: None for old, new in pairs if _value(old, key) != _value(new, key)}
        if kind_of(key) == "result" and changed:
            everywhere = len(changed) == len({cell.row for cell in after})
            changes.append(setting if everywhere else f"{setting} ({', '.join(changed)})")
    return changes


def plan_recipe(
    recipe: Recipe, scale: Scale, seeds: Sequence[int], settings: Sequence[str], folder: Path
) -> Results:
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
    cells = with_settings(recipe, unchanged, settings)
    described = described_changes(unchanged, cells, settings)
    return Results(recipe, scale, list(map(kept, cells)), described)


def chosen_cells(plans: Sequence[Results], only: Sequence[str]) -> list[CellFolder[RecipeCell]]:
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
