"""What does bfloat16 cost in accuracy? Every method in both precisions, paired by seed.

    python benchmarks/precision.py --data DIR --out benchmarks/results/precision.json

The compact CNN on the built-in digits for 20 rounds, and on CIFAR-10 in DIR: 100 clients of
500 images, Dirichlet 0.3, 5 a round, 2 epochs, 12 rounds, scored on 2,000 test images. Runs that
the file has already are not repeated. docs/speed.md shows the table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dcfl
from benchmarks.records import keep, kept_runs, side_by_side
from dcfl.methods import METHODS

SEEDS = range(5)
PRECISIONS = ("float32", "bfloat16")
Cell = tuple[str, str, int, str]  # data set, method, seed, precision


def settings(dataset: str, data: str) -> dict[str, Any]:
    if dataset == "digits":
        return {"data": {"dataset": "digits"}, "federation": {"rounds": 20}}
    return {
        "data": {"dataset": "cifar10", "path": data, "clients": 100, "test_images": 2000},
        "training": {"epochs": 2},
        "federation": {"rounds": 12, "participation": 0.05},
    }


def accuracies(cell: Cell, data: str) -> dict[str, float]:
    dataset, method, seed, precision = cell
    planned = settings(dataset, data)
    planned["federation"]["seed"] = seed
    # The paper's mu of 10 does not train in so few rounds: compare runs that learn something.
    chosen = {"name": method, **({"mu": 1.0} if method in ("dcfl-sw", "dcfl-pw") else {})}
    with tempfile.TemporaryDirectory() as folder:
        summary = dcfl.run(
            out=Path(folder) / "run",
            method=chosen,
            engine={"workers": 1, "precision": precision},
            output={"report": False, "checkpoint": 0},
            **planned,
        ).summary
    return {key: summary[f"{key}_accuracy"] for key in ("max", "ema", "final")}


def measure(data: str, out: Path, jobs: int) -> None:
    done, names = kept_runs(out), ("dataset", "method", "seed", "precision")
    have = {tuple(row[name] for name in names) for row in done}
    missing = [cell for cell in cells() if cell not in have]
    for number, (cell, found) in enumerate(side_by_side(accuracies, missing, data, jobs), start=1):
        done.append({**dict(zip(names, cell, strict=True)), **found})
        keep(out, runs=sorted(done, key=lambda row: [row[name] for name in names]))
        print(f"{number}/{len(missing)} {done[-1]}", flush=True)


def cells() -> Iterator[Cell]:
    for dataset in ("digits", "cifar10"):
        for seed in SEEDS:
            for method in METHODS:
                for precision in PRECISIONS:
                    yield dataset, method, seed, precision


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="data")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--jobs", type=int, default=2)
    given = words.parse_args()
    measure(given.data, given.out, given.jobs)


if __name__ == "__main__":
    main()
