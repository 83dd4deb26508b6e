"""Why does DCFL help, and when? Models of the `mini` scale looked at in the course of training.

    python benchmarks/course.py --data DIR --out benchmarks/results/course.json

CIFAR-10 with Dirichlet 0.3 and 5 % participation: turns of features from round to round and from
client to client, cosines of updates, alignment, uniformity, dimensions in use, training loss. Two
runs at a time; those that the file has already are not repeated. docs/why.md shows it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.bench.measure import machine
from dcfl.analysis.course import follow
from dcfl.config import Table, Tables
from dcfl.paper.recipe_book import HARD
from dcfl.paper.scales import MINI

# By row: the method, its fields and the projection head. FedAvg is the same with and without one.
METHODS: dict[str, tuple[str, Table, str]] = {
    "FedAvg": ("fedavg", {}, "side256"),
    "DCFL-PW": ("dcfl-pw", {}, "none"),
    "DCFL-SW": ("dcfl-sw", {}, "none"),
    "DCFL-PW, side head": ("dcfl-pw", {}, "side256"),
    "DCFL-SW, side head": ("dcfl-sw", {"mu": 5.0}, "side256"),
    "FedProc, side head": ("fedproc", {}, "side256"),
}
SEEDS = (0,)
ROUNDS = (10, 25, 50, 100, 175, 250, 375, 500)
Cell = tuple[str, int]  # row and seed


def followed(cell: Cell, data: str) -> dict[str, Any]:
    row, seed = cell
    method, fields, head = METHODS[row]
    changes: Tables = {
        "data": {"path": data},
        "model": {"head": head},
        "engine": {"workers": 1},
    }
    experiment = MINI.experiment(HARD, method, seed, fields, changes)
    moments = [moment.as_json() for moment in follow(experiment, ROUNDS)]
    mu = getattr(experiment.method, "mu", None)
    return {"row": row, "method": method, "seed": seed, "mu": mu, "moments": moments}


def measure(data: str, out: Path) -> None:
    done = json.loads(out.read_text(encoding="utf-8"))["runs"] if out.exists() else []
    have = {(run["row"], run["seed"]) for run in done}
    missing = [(row, seed) for seed in SEEDS for row in METHODS if (row, seed) not in have]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(followed, cell, data) for cell in missing]):
            done.append(future.result())
            print(done[-1]["row"], done[-1]["seed"], done[-1]["moments"][-1], flush=True)
            order = list(METHODS)
            ordered = sorted(done, key=lambda run: (run["seed"], order.index(run["row"])))
            text = json.dumps({"machine": machine(), "runs": ordered}, indent=1)
            out.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    measure(options.data, options.out)


if __name__ == "__main__":
    main()
