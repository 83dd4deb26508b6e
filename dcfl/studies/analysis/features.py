"""The embeddings of the images that a run is evaluated on: what the classifier sees and, if the
model has a side head, also that head's output.

These are `dataset.test`: the test images, or with `data.holdout` the training images kept back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dcfl.client import evaluating
from dcfl.data import Images
from dcfl.data.augment import with_border
from dcfl.data.client_data import normalises_by_batch
from dcfl.errors import RunFolderError
from dcfl.models.output import Embedding
from dcfl.seeding import generator_for
from dcfl.system.transfers import to_device
from dcfl.trained.subject import Subject, embed


class Features(NamedTuple):
    embeddings: Tensor  # [n, d], float32, on the CPU
    labels: Tensor  # [n]
    accuracy: float  # of the classifier on them, percent


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
