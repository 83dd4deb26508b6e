"""Cells with results that nobody trained, and cells that take a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dcfl.comparisons.cells import CellFolder
from dcfl.paper.plans import with_settings
from dcfl.paper.recipe import RecipeCell
from dcfl.paper.recipe_book import RECIPES
from dcfl.paper.scales import SMOKE
from tests.report.folders import as_recorded, write_run


def cells_of(
    recipe: str, seeds: Sequence[int] = (0,), words: Sequence[str] = ()
) -> list[RecipeCell]:
    """As `dcfl reproduce RECIPE --scale smoke --seeds SEEDS WORDS` has them."""
    return with_settings(RECIPES[recipe], list(RECIPES[recipe].cells(SMOKE, seeds)), words)


def cell_folders_in(out: Path, cells: Sequence[RecipeCell]) -> list[CellFolder[RecipeCell]]:
    return [CellFolder(cell, out / "cells" / cell.name) for cell in cells]


def pretend(
    cell_folder: CellFolder[Any],
    accuracies: Sequence[float],
    finished: bool = True,
    scores: Mapping[str, Any] | None = None,
) -> None:
    """A run folder as the cell's run would leave it behind, with these accuracies."""
    method = cell_folder.cell.experiment.method.name
    write_run(cell_folder.path, accuracies, method=method, finished=finished, scores=scores)
    (cell_folder.path / "config.toml").write_text(as_recorded(cell_folder.experiment))
