"""What does evaluating after every round cost, beside a run that does not?

    python benchmarks/evaluation.py [cnn|resnet18] [REPEATS] [FILE.json]

The paper's proportions on CIFAR-10: 5 clients a round, 5 epochs of 500 images each, 10,000 test
images; for the ResNet-18 a fifth of all three numbers of images. Two workers; seconds per round
with all test images and with ten of them, in turn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.bench.jobs import Job, read_job, write_job
from benchmarks.bench.measure import spread
from benchmarks.bench.ours import experiment
from benchmarks.records import keep
from dcfl.data import Images
from dcfl.models import ModelSettings
from dcfl.runs.run import Run

PLANS = {"cnn": (500, 10_000, 6), "resnet18": (100, 2_000, 3)}  # images, test images, rounds


def seconds_per_round(model: str, tests: int, folder: Path) -> float:
    """Over a whole run, the first round and the last evaluation included."""
    job, dataset = read_job(folder)
    test = Images(dataset.train.pixels[:tests], dataset.train.labels[:tests])
    with tempfile.TemporaryDirectory() as out:
        planned = replace(experiment(job, 2, out), model=ModelSettings(model))  # type: ignore[arg-type]
        run = Run(planned, replace(dataset, test=test))
        began = time.perf_counter()
        rows = list(run.rounds())
    return (time.perf_counter() - began) / len(rows)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "cnn"
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    images, tests, rounds = PLANS[model]
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"with evaluation": [], "without": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "job"
        write_job(Job("evaluation", "lenet", 100, images, 5, 5, 64, rounds), folder)
        for _ in range(repeats):
            found["with evaluation"].append(seconds_per_round(model, tests, folder))
            found["without"].append(seconds_per_round(model, 10, folder))
            print({name: values[-1] for name, values in found.items()}, file=sys.stderr)
    ratios = [a / b for a, b in zip(*found.values(), strict=True)]
    print(f"{model}: {spread(found['with evaluation'])} s a round, {spread(ratios)} of one without")
    if len(sys.argv) > 3:
        keep(sys.argv[3], model=model, seconds=found)


if __name__ == "__main__":
    main()
