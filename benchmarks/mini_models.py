"""Which network fits `dcfl reproduce --scale mini`? Accuracy against time, on one core each.

    python benchmarks/mini_models.py --data DIR --out benchmarks/results/mini-models.json

FedAvg at the scale's settings with 150 rounds, CIFAR-10 with Dirichlet 0.3, scored on images kept
back. Two runs at a time, as the scale's cells are trained. docs/recipes.md shows the table.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import dcfl
from benchmarks.records import keep, side_by_side
from dcfl.paper.recipe_book import HARD
from dcfl.paper.scales import MINI

ROUNDS = 150
NETWORKS = (
    ("cnn", 32, "bfloat16"),
    ("resnet8", 16, "bfloat16"),
    ("cnn", 32, "float32"),
    ("resnet8", 16, "float32"),
    ("cnn", 48, "bfloat16"),
    ("resnet8", 24, "bfloat16"),
)


def measured(network: tuple[str, int, str], data: str) -> dict[str, Any]:
    name, width, precision = network
    changes = {
        "data": {"path": data, "holdout": 0.1},
        "model": {"name": name, "width": width},
        "engine": {"precision": precision, "workers": 1},
        "federation": {"rounds": ROUNDS},
        # By the end, as in the scale's own rounds.
        "training": {"lr_decay": 0.998 ** (1000 / ROUNDS)},
    }
    experiment = MINI.experiment(HARD, "fedavg", 0, {}, changes)
    with tempfile.TemporaryDirectory() as folder:
        output = replace(experiment.output, dir=f"{folder}/run", report=False, checkpoint=0)
        result = dcfl.run(replace(experiment, output=output))
        rounds = list(result.rounds)
    summary = result.summary
    return {
        "model": name,
        "width": width,
        "precision": precision,
        "parameters": summary.parameters,
        "max": summary.max_accuracy,
        "ema": summary.ema_accuracy,
        "loss": rounds[-1].loss,
        "seconds": sum(row.seconds for row in rounds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = {}
    for network, row in side_by_side(measured, NETWORKS, options.data):
        print(row, flush=True)
        rows[network] = row
    keep(options.out, rounds=ROUNDS, runs=[rows[network] for network in NETWORKS])


if __name__ == "__main__":
    main()
