"""A finished run together with the images that it was trained and evaluated on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from dcfl import config
from dcfl.client import evaluating
from dcfl.data import Dataset, DataSettings, Images, Preparation, load_dataset
from dcfl.data.client_data import clean_batches, normalises_by_batch
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, DatasetMissing, RunFolderError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.models.output import Embedding
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import load_model
from dcfl.system.wording import printable


def data_settings(run: RecordedRun) -> DataSettings:
    """The run's [data], with the seed of its split. The rest of its config plays no part: its
    method may be in a file that is not at hand."""
    seed = run.config["federation"].get("seed", 0)
    tables = {"data": run.config["data"], "federation": {"seed": seed}}
    return config.experiment_from(None, tables).seeded_data


def inputs_of(model: FeatureModel) -> tuple[Preparation, tuple[int, ...]]:
    """How a loaded model's inputs are prepared, and their shape: see `FeatureModel`."""
    return cast(Preparation, model.preparation), cast(tuple[int, ...], model.image_shape)


def sees_pictures(model: FeatureModel) -> bool:
    """Whether it was trained on square images, such as pictures are read as."""
    preparation, shape = inputs_of(model)
    return bool(preparation.mean) and shape[0] == shape[1] > 1


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
    (trained, _), now = inputs_of(model), dataset.preparation
    same = (trained.mean, trained.std) == (now.mean, now.std)
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
    return "kept-back training images" if settings.holdout else "test images"


@dataclass(frozen=True)
class Subject:
    run: RecordedRun
    experiment: Experiment
    model: FeatureModel  # as it was at the end, in evaluation mode
    dataset: Dataset  # with the run's own augmentation; on the model's device

    @property
    def round(self) -> int:
        return self.run.rounds[-1].round

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        side = self.experiment.model.head.startswith("side")
        return ("features", "projection") if side else ("features",)


def open_subject(run: RecordedRun) -> Subject:
    """Refuses here, in one line that names the run, whatever cannot be examined."""
    folder = run.folder
    model = load_model(folder)
    if not run.rounds:
        raise RunFolderError(f"{folder}: rounds.jsonl is missing or empty")
    method = run.config["method"].get("name")
    if method not in METHODS:
        raise ConfigError(
            f"{folder} was trained with a method of your own, {method!r}: "
            f"name its file with --method-file"
        )
    experiment = run.experiment
    dataset = load_own_data(run, model)
    if len(dataset.test) < 2:
        raise ConfigError(f"{folder.name}: {dataset.name} has no pair of test images to compare")
    augmentation = experiment.data.augmentation(dataset.preparation.augmentation)
    # Whatever device the run was trained on: the folder may come from another machine.
    device = choose_devices("auto")[0]
    return Subject(run, experiment, model.to(device), dataset.augmented_by(augmentation).to(device))


def require_finite(folder: Path, *found: Tensor) -> None:
    """`found`: what the run's model made of images."""
    if not all(tensor.isfinite().all() for tensor in found):
        raise RunFolderError(
            f"{printable(folder)}: the model's outputs are not finite: the run has diverged"
        )


@torch.inference_mode()
def embed(
    model: FeatureModel,
    images: Images,
    preparation: Preparation,
    layer: Embedding = "features",
) -> tuple[Tensor, Tensor]:
    """Embeddings [n, d] and logits [n, classes] in the images' order, float32 on the CPU. `layer`:
    which embedding of a model that has two, see `Output.z`."""
    with evaluating(model):
        outputs = [model(batch.images) for batch in clean_batches(images, preparation, model)]
    embeddings = torch.cat([output.z(layer).float().cpu() for output in outputs])
    logits = torch.cat([output.logits.float().cpu() for output in outputs])
    if not normalises_by_batch(model):
        return embeddings, logits
    back = images.mixed_order.argsort().cpu()
    return embeddings[back], logits[back]
