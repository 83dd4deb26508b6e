"""What clients' prototypes tell, with rules and noise that could hide it.

Counts say which classes a client has. The sum of a class with a single image is that image's
embedding, and whoever has a picture can see whether it is the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.analysis.membership import threshold_attack
from dcfl.client import evaluating
from dcfl.data.client_data import clean_batches
from dcfl.data.splits.partition import Partition
from dcfl.trained.subject import Subject

# min_class_count, and the noise: its deviation in every number, as [privacy] would have it where
# the clip is just as long as what is sent.
PROTECTIONS = ((1, 0.0), (2, 0.0), (10, 0.0), (1, 0.01), (1, 0.1), (1, 1.0))


@dataclass(frozen=True)
class PrototypeLeak:
    """What the uploads of all clients tell, one each, under one protection."""

    min_class_count: int
    noise: float
    presence: float  # AUC: 1, who has which class is told exactly; 0.5, not at all
    singles: int  # sums of a single image that were sent
    cosine: float | None  # mean cosine of those with the image's embedding; None: there are none
    found: float | None  # share of those whose image is the nearest of all training images


def prototype_leaks(subject: Subject, partition: Partition) -> tuple[PrototypeLeak, ...]:
    """At the final model; none, if the method sends no prototypes."""
    vectors, labels = _vectors(subject), subject.dataset.train.labels.cpu()
    if vectors is None:
        return ()
    owned = [torch.from_numpy(partition.of(client)).long() for client in range(len(partition))]
    seed, classes = subject.experiment.federation.seed, subject.dataset.classes
    return tuple(
        told_by(vectors, labels, classes, owned, least, noise, seed) for least, noise in PROTECTIONS
    )


@torch.inference_mode()
def _vectors(subject: Subject) -> Tensor | None:
    model, dataset, found = subject.model, subject.dataset, []
    with evaluating(model):
        for batch in clean_batches(dataset.train, dataset.preparation, model):
            summed = subject.experiment.method.summed(model(batch.images))
            if summed is None:
                return None
            found.append(summed.cpu())
    return torch.cat(found)


def told_by(
    vectors: Tensor,
    labels: Tensor,
    classes: int,
    owned: Sequence[Tensor],
    least: int,
    noise: float,
    seed: int,
) -> PrototypeLeak:
    """`owned`: which images each client has."""
    generator = torch.Generator().manual_seed(seed)
    held, counted, sent, images = [], [], [], []
    for own in owned:
        member = F.one_hot(labels[own], classes)
        counts = member.sum(dim=0)
        kept = counts >= least
        total = member.T.to(vectors.dtype) @ vectors[own]
        sums = _noised(total * kept[:, None], noise, generator)
        counted.append(_noised((counts * kept).double(), noise, generator))
        held.append(counts > 0)
        for single in torch.nonzero(kept & (counts == 1)).flatten():
            sent.append(sums[single])
            images.append(own[labels[own] == single])
    present, claimed = torch.cat(held), torch.cat(counted)
    ranks = [(-claimed[which]).numpy() for which in (present, ~present)]
    # Where every client has every class, there is nothing to tell.
    presence = threshold_attack(*ranks).auc if len(ranks[1]) else 0.5
    if not sent:
        return PrototypeLeak(least, noise, presence, 0, None, None)
    alike = F.normalize(torch.stack(sent)) @ F.normalize(vectors).T  # [singles, images]
    true = torch.cat(images)
    own_cosine = alike.gather(1, true[:, None])[:, 0]
    nearest = alike.argmax(dim=1) == true
    return PrototypeLeak(
        least, noise, presence, len(sent), float(own_cosine.mean()), float(nearest.double().mean())
    )


def _noised(exact: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """As [privacy] adds it to an upload of two tensors whose clips just fit."""
    drawn = torch.randn(exact.shape, generator=generator, dtype=exact.dtype)
    return drawn.mul_(noise * sqrt(2) * float(exact.norm())).add_(exact)
