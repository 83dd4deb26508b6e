"""The data set that a run was trained on, as long as it is still what it was."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dcfl import config
from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.data.folders import training_folders
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing
from dcfl.models import FeatureModel
from dcfl.runs.folder import RecordedRun


def data_settings(run: RecordedRun) -> DataSettings:
    """The run's [data], with the seed of its split. The rest of its config plays no part: its
    method may be in a file that is not at hand."""
    seed = run.config["federation"].get("seed", 0)
    tables = {"data": run.config["data"], "federation": {"seed": seed}}
    return config.experiment_from(None, tables).seeded.data


def load_own_data(run: RecordedRun, model: FeatureModel) -> Dataset:
    """Refuses, in one line that names the run, images that are elsewhere or have changed."""
    settings = data_settings(run)
    if settings.dataset == "remote":
        raise ConfigError(
            f"{run.folder}: its images never left the sites they lie at, and there are no others "
            f"here"
        )
    try:
        dataset = load_dataset(settings)
    except DatasetMissing as error:
        raise DatasetMissing(f"{run.folder}: its data set is no longer there: {error}") from error
    trained, now = model.preparation, dataset.preparation
    same = trained is not None and (trained.mean, trained.std) == (now.mean, now.std)
    if model.class_names != dataset.class_names or not same:
        raise ConfigError(
            f"{run.folder.name}: {dataset.name} is not what it was when the run was trained: other "
            f"classes, or images of another mean and deviation"
        )
    augmentation = settings.augmentation(now.augmentation)
    content = dataset.augmented_by(augmentation).fingerprint[:16]
    if run.environment.get("data", content) != content:
        raise ConfigError(
            f"{run.folder.name}: the images of {dataset.name} are not those that the run was "
            f"trained and scored on; to score on others, name their folder"
        )
    return dataset


def kind_of_images(settings: DataSettings) -> str:
    """What the run is scored on."""
    return "kept-back training images" if settings.holdout else "test images"


def trained_on_some(run: RecordedRun, places: Iterable[Path]) -> bool:
    """Whether files or folders lie where the run's training pictures lie, as far as is known."""
    kind, _, where = data_settings(run).dataset.partition(":")
    if kind not in ("folder", "sites"):
        return False
    try:
        folders = training_folders(Path(os.path.expanduser(where)), sites=kind == "sites")
    except (DatasetMissing, DatasetCorrupt):  # it has moved, or changed
        return False
    known = [folder.resolve() for folder in folders]
    asked = [place.resolve() for place in places]
    return any(
        place.is_relative_to(folder) or folder.is_relative_to(place)
        for place in asked
        for folder in known
    )
