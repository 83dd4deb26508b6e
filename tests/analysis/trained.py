"""Small runs to analyse, trained in this process."""

import shutil
from pathlib import Path
from typing import Any

import dcfl
from dcfl.runs.folder import RecordedRun

QUICK = {
    "federation.rounds": 2,
    "federation.participation": 0.2,
    "training.epochs": 1,
    "engine.workers": 1,
    "output.checkpoint": 0,
    "output.report": False,
}


def train(folder: Path, **changes: Any) -> RecordedRun:
    """`changes` by dotted name."""
    dcfl.run(out=folder, **{**QUICK, **changes})
    return RecordedRun.open(folder)


def copied(run: RecordedRun, folder: Path) -> RecordedRun:
    """To be changed by a test."""
    return RecordedRun.open(Path(shutil.copytree(run.folder, folder)))
