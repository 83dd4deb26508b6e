"""Cells with results that nobody trained, and cells that take a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dcfl.config import as_tables, to_toml
from dcfl.studies.recipes.cells import Kept
from dcfl.studies.recipes.changes import with_words
from dcfl.studies.recipes.paper import RECIPES, Cell
from dcfl.studies.recipes.scales import SMOKE
from tests.report.folders import write_run


def cells_of(recipe: str, seeds: Sequence[int] = (0,), words: Sequence[str] = ()) -> list[Cell]:
    """As `dcfl reproduce RECIPE --scale smoke --seeds SEEDS WORDS` has them."""
    return with_words(RECIPES[recipe], list(RECIPES[recipe].cells(SMOKE, seeds)), words)


def kept_in(out: Path, cells: Sequence[Cell]) -> list[Kept]:
    return [Kept(cell, out / "cells" / cell.name) for cell in cells]


def pretend(kept: Kept, accuracies: Sequence[float], finished: bool = True) -> None:
    """A run folder as the cell's run would leave it behind, with these accuracies."""
    write_run(kept.folder, accuracies, method=kept.cell.experiment.method.name, finished=finished)
    (kept.folder / "config.toml").write_text(to_toml(as_tables(kept.experiment)) + "\n")
