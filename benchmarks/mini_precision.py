"""Do the numbers of `dcfl reproduce --scale mini` depend on bfloat16? FedAvg and DCFL-SW in both.

    python benchmarks/mini_precision.py --seeds 0 data.path=DIR

Two pairs of cells for each seed, CIFAR-10 with Dirichlet 0.3. It takes the arguments of
`dcfl reproduce` and can be stopped and repeated; those in bfloat16 are cells of the scale, in the
same folder. Writes precision.md beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from dcfl.cli.main import main
from dcfl.paper.recipe import CellFactory, Recipe, RecipeCell
from dcfl.paper.recipe_book import HARD, RECIPES


def precisions(at: CellFactory) -> Iterator[RecipeCell]:
    for precision in ("bfloat16", "float32"):
        for row in ("FedAvg", "DCFL-SW"):
            yield at.cell(row, precision, changes={"engine": {"precision": precision}})


RECIPES["precision"] = Recipe(
    "precision",
    "bfloat16 against float32",
    "Whether the numbers depend on the precision that they were computed in.",
    [HARD],
    precisions,
    columns="precision",
)

if __name__ == "__main__":
    sys.argv[1:1] = ["reproduce", "precision"]
    main()
