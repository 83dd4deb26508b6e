"""A finished run together with the images that it was trained and evaluated on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import Dataset, Images, Preparation
from dcfl.data.client_data import clean_batches, normalises_by_batch
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, RunFolderError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.models.output import Embedding
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Which, load_model
from dcfl.trained.own_data import load_own_data


@dataclass(frozen=True)
class Subject:
    """A finished run, with everything needed to examine its model."""

    run: RecordedRun
    experiment: Experiment
    model: FeatureModel  # as it was at the end or at its best, in evaluation mode
    dataset: Dataset  # with the run's own augmentation; on the model's device

    @property
    def round(self) -> int:
        """The last one."""
        return self.run.rounds[-1].round

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        """Those that the model has."""
        side = self.experiment.model.head.startswith("side")
        return ("features", "projection") if side else ("features",)


def open_subject(run: RecordedRun, which: Which = "last") -> Subject:
    """Refuses here, in one line that names the run, whatever cannot be examined."""
    folder = run.folder
    model = load_model(folder, which)
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
