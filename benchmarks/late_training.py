"""Does DCFL help once a network has learned? From a trained model on under a skewed split.

    python benchmarks/late_training.py --data DIR --out benchmarks/results/late-training.json

FedAvg trains the compact CNN on an even split of CIFAR-10 over ten clients, all in each of 25
rounds. From there every method goes on for 40 rounds with 5 of 100 clients, Dirichlet 0.3.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import dcfl

METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "DCFL-PW, mu 0.1": {"name": "dcfl-pw", "mu": 0.1},
    "DCFL-PW, mu 1": {"name": "dcfl-pw", "mu": 1.0},
    "DCFL-PW, mu 10": {"name": "dcfl-pw", "mu": 10.0},
    "FedProc, mu 1": {"name": "fedproc", "mu": 1.0},
    "DCFL-SW, mu 1": {"name": "dcfl-sw", "mu": 1.0, "reduction": "mean"},
}


def trained(data: str, folder: Path) -> Path:
    dcfl.run(
        out=folder,
        method="fedavg",
        data={"dataset": "cifar10", "path": data, "clients": 10, "alpha": math.inf, "seed": 99},
        training={"epochs": 1, "lr": 0.1, "momentum": 0.0, "lr_decay": 0.92},
        federation={"rounds": 25, "participation": 1.0, "seed": 99},
    )
    return folder


def went_on(data: str, start: Path, folder: Path, method: dict[str, Any]) -> dict[str, float]:
    summary = dcfl.run(
        out=folder,
        model=dcfl.load_model(start),
        method=method,
        data={"dataset": "cifar10", "path": data, "clients": 100, "alpha": 0.3},
        training={"epochs": 2, "lr": 0.03, "momentum": 0.0, "lr_decay": 0.967},
        federation={"rounds": 40, "participation": 0.05},
    ).summary
    return {key: summary[f"{key}_accuracy"] for key in ("max", "ema", "final")}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="data")
    words.add_argument("--out", type=Path, required=True)
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        start = trained(given.data, Path(temporary) / "start")
        results = {
            name: went_on(given.data, start, Path(temporary) / str(number), METHODS[name])
            for number, name in enumerate(METHODS)
        }
    given.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
