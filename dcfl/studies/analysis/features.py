"""The embeddings of the images that a run is evaluated on: what the classifier sees and, if the
model has a side head, also that head's output.

These are `dataset.test`: the test images, or with `data.holdout` the training images kept back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import Dataset, Images
from dcfl.data.augment import Preparation, with_border
from dcfl.data.client_data import clean_batches, normalises_by_batch
from dcfl.engines.placement import choose_devices
from dcfl.errors import ConfigError, RunFolderError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.models.output import Embedding
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import load_model
from dcfl.seeding import generator_for
from dcfl.system.transfers import to_device
from dcfl.trained.own_data import load_own_data


@dataclass(frozen=True)
class Subject:
    """A finished run, with everything needed to examine its model."""

    run: RecordedRun
    experiment: Experiment
    model: FeatureModel  # as it was at the end, in evaluation mode
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


class Features(NamedTuple):
    embeddings: Tensor  # [n, d], float32, on the CPU
    labels: Tensor  # [n]
    accuracy: float  # of the classifier on them, percent


def open_subject(run: RecordedRun) -> Subject:
    """Refuses here, in one line that names the run, whatever cannot be analysed."""
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


def features_of(subject: Subject, which: Embedding = "features") -> Features:
    """Of all test images, in their order."""
    dataset = subject.dataset
    embeddings, logits = embed(subject.model, dataset.test, dataset.preparation, which)
    if not embeddings.isfinite().all():
        raise RunFolderError(
            f"{subject.run.folder}: the model's embeddings are not finite: the run has diverged"
        )
    labels = dataset.test.labels.cpu()
    accuracy = 100 * float((logits.argmax(dim=1) == labels).double().mean())
    return Features(embeddings, labels, accuracy)


@torch.inference_mode()
def embed(
    model: FeatureModel, images: Images, preparation: Preparation, which: Embedding = "features"
) -> tuple[Tensor, Tensor]:
    """Embeddings [n, d] and logits [n, classes] in the images' order, float32 on the CPU."""
    with evaluating(model):
        outputs = [model(batch.images) for batch in clean_batches(images, preparation, model)]
    embeddings = torch.cat([output.z(which).float().cpu() for output in outputs])
    logits = torch.cat([output.logits.float().cpu() for output in outputs])
    if not normalises_by_batch(model):
        return embeddings, logits
    back = images.mixed_order.argsort().cpu()
    return embeddings[back], logits[back]


@torch.inference_mode()
def embed_two_views(
    subject: Subject, most: int, which: Embedding = "features"
) -> tuple[Tensor, Tensor] | None:
    """Embeddings of two augmentations of the same test images, as the run augmented its training
    images; None if it did not."""
    preparation = subject.dataset.preparation
    if not preparation.augmentation.active:
        return None
    chosen = some_images(subject, most)
    mixed = normalises_by_batch(subject.model)
    order = chosen.mixed_order.cpu() if mixed else torch.arange(len(chosen))
    bordered, (height, width) = with_border(chosen.pixels), chosen.pixels.shape[1:3]
    seed, views = subject.experiment.federation.seed, []
    for purpose in ("augmentation", "second view"):
        generator = generator_for(seed, 0, 0, purpose)
        parts = []
        with evaluating(subject.model):
            # Even batches: a model without running statistics cannot normalise a small last one.
            for rows in torch.tensor_split(order, -(-len(chosen) // 100)):
                moves = preparation.augmentation.draw(len(rows), height, width, generator)
                here = to_device({"rows": rows, **moves}, bordered.device)
                images = preparation.augmented(bordered, here["rows"], here)
                parts.append(subject.model(images).z(which).float().cpu())
        views.append(torch.cat(parts))
    return views[0], views[1]


def some_images(subject: Subject, most: int) -> Images:
    """At most `most` test images, drawn by the run's seed."""
    test = subject.dataset.test
    if len(test) <= most:
        return test
    chosen = drawn(len(test), most, subject.experiment.federation.seed).to(test.labels.device)
    return test[chosen]


def drawn(count: int, most: int, seed: int) -> Tensor:
    """`most` of `count` indices without replacement, in ascending order; all if there are fewer."""
    if count <= most:
        return torch.arange(count)
    generator = generator_for(seed, 0, 0, "order")
    return torch.randperm(count, generator=generator)[:most].sort().values
