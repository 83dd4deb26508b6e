"""Whole runs on digits that take a second, from beginning to end or stopped on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dcfl import load_experiment
from dcfl.experiment import Experiment
from dcfl.runs.run import Run

QUICK = {
    "model.width": 8,
    "training.epochs": 1,
    "federation.participation": 0.5,
    "engine.workers": 1,
    "output.report": False,
    "output.checkpoint": 1,
}
FOUR_CLIENTS = {"data.train_images": 400, "data.clients": 4, "data.min_size": 2}


def quick_experiment(folder: Path, **settings: Any) -> Experiment:
    return load_experiment(**{**QUICK, "output.dir": str(folder), **settings})


def finished(run: Run) -> Run:
    for _ in run.rounds():
        pass
    return run
