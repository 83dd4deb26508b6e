"""Finished runs in folders that a person has named: the same experiment is not trained twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from dcfl.data import load_dataset
from dcfl.errors import RunMissing
from dcfl.experiment import Experiment
from dcfl.report import find_runs
from dcfl.runs.folder import RecordedRun
from dcfl.runs.groups import setting
from dcfl.runs.own_code import own_files
from dcfl.studies.cells.cell_folders import difference_to

INSIDE = ("", "cells", "trials", "chosen")  # where comparisons, reproductions and sweeps keep runs


class Shelf:
    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._runs = [run for folder in folders for run in _finished(folder)]
        self._load = lru_cache(1)(load_dataset)

    def find(self, experiment: Experiment) -> Path | None:
        """The folder of a run of this experiment with this seed. Not if the user's own code, images
        or initial weights play a part: their content may have changed."""
        own = own_files(experiment) or not type(experiment.method).__module__.startswith("dcfl.")
        if own or ":" in experiment.data.dataset or experiment.model.weights:
            return None
        # What "auto" stands for: in a method here, in the augmentation below.
        method = experiment.server.fitted(experiment.method)
        wanted = replace(experiment.seeded, method=method)
        for run in self._runs:
            if not difference_to(wanted, run) and self._same_views(wanted, run):
                return run.folder
        return None

    def _same_views(self, experiment: Experiment, run: RecordedRun) -> bool:
        usual = self._load(experiment.data).preparation.augmentation
        views = experiment.data.augmentation(usual)
        return (views.crop, views.flip) == (setting(run, "data.crop"), setting(run, "data.flip"))


def _finished(folder: Path) -> list[RecordedRun]:
    """Of a run folder, or of one that holds run folders."""
    places = [folder / inside for inside in INSIDE]
    runs = [
        run
        for place in places
        if (place / "config.toml").is_file() or any(place.glob("*/config.toml"))
        for run in find_runs(place)
    ]
    if not runs:
        raise RunMissing(f"{folder} holds no run that could be used again")
    return [run for run in runs if run.finished]
