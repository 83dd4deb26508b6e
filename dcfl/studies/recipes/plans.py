"""A recipe at one scale: its cells with the user's settings, where they are kept, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcfl.studies.cells.cell_folders import CellFolder, matching
from dcfl.studies.recipes.changes import described_changes, with_settings
from dcfl.studies.recipes.recipe import Cell, Recipe
from dcfl.studies.recipes.results import Results
from dcfl.studies.recipes.scales import Scale


@dataclass(frozen=True)
class RecipePlan:
    recipe: Recipe
    scale: Scale
    settings: Sequence[str]  # KEY=VALUE, on top of the scale's own
    unchanged: Sequence[Cell]  # without those settings
    cells: Sequence[CellFolder[Cell]]

    def results(self) -> Results:
        """Reads the folders again: cells may have been trained since they were first read."""
        changed = [cell_folder.cell for cell_folder in self.cells]
        read_again = [CellFolder(cell.cell, cell.path) for cell in self.cells]
        changes = described_changes(self.unchanged, changed, self.settings)
        return Results(self.recipe, self.scale, read_again, changes)


def plan_recipe(
    recipe: Recipe, scale: Scale, seeds: Sequence[int], settings: Sequence[str], folder: Path
) -> RecipePlan:
    unchanged = list(recipe.cells(scale, seeds))
    cells = [
        CellFolder(cell, folder / "cells" / cell.name)
        for cell in with_settings(recipe, unchanged, settings)
    ]
    return RecipePlan(recipe, scale, settings, unchanged, cells)


def chosen_cells(plans: Sequence[RecipePlan], only: Sequence[str]) -> list[CellFolder[Cell]]:
    """The cells of all plans, each once; checked, and narrowed to those that `only` names."""
    unique = {cell.name: cell for plan in plans for cell in plan.cells}
    for cell in unique.values():
        cell.check()
    return matching(unique.values(), only)
