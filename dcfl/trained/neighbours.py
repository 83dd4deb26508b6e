"""Which training images a model finds most similar to some test images, by their embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl.data import Images
from dcfl.errors import ConfigError
from dcfl.models.output import Embedding
from dcfl.seeding import generator_for
from dcfl.trained.subject import Subject, embed

MOST_TRAINING_IMAGES = 10_000  # searched; a sample of more


class Neighbour(NamedTuple):
    pixels: NDArray[np.uint8]  # [H, W, C]
    label: int
    cosine: float


@dataclass(frozen=True)
class Query:
    """A test image and its neighbours, the most similar first."""

    pixels: NDArray[np.uint8]
    label: int
    predicted: int
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Neighbourhood:
    drawn: tuple[Query, ...]  # test images drawn at random
    wrong: tuple[Query, ...]  # drawn from those that the model gets wrong
    searched: int  # training images
    images: int  # test images
    accuracy: float  # of the classifier on all test images, percent
    agreement: float  # share of all test images whose nearest neighbour has their class, percent


def find_neighbours(
    subject: Subject, queries: int, neighbours: int, layer: Embedding = "projection"
) -> Neighbourhood:
    dataset, seed = subject.dataset, subject.experiment.federation.seed
    if dataset.vectors:
        raise ConfigError(f"{subject.run.folder.name}: feature vectors cannot be shown as pictures")
    train = dataset.train.sample(MOST_TRAINING_IMAGES)
    known, _ = embed(subject.model, train, dataset.preparation, layer)
    asked, logits = embed(subject.model, dataset.test, dataset.preparation, layer)
    labels, predicted = dataset.test.labels.cpu(), logits.argmax(dim=1)
    cosines, nearest = most_similar(asked, known, neighbours)
    order = torch.randperm(len(labels), generator=generator_for(seed, 0, 0, "order"))
    wrong = order[(predicted != labels)[order]]

    def query(row: int) -> Query:
        found = zip(cosines[row].tolist(), nearest[row].tolist(), strict=True)
        return Query(
            _pixels(dataset.test, row),
            int(labels[row]),
            int(predicted[row]),
            tuple(
                Neighbour(_pixels(train, at), int(train.labels[at]), cosine) for cosine, at in found
            ),
        )

    same = train.labels.cpu()[nearest[:, 0]] == labels
    return Neighbourhood(
        drawn=tuple(query(int(row)) for row in order[:queries]),
        wrong=tuple(query(int(row)) for row in wrong[:queries]),
        searched=len(train),
        images=len(labels),
        accuracy=100 * float((predicted == labels).double().mean()),
        agreement=100 * float(same.double().mean()),
    )


def most_similar(asked: Tensor, known: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest cosines [n, count] and whose they are; in blocks, because all pairs may be
    many."""
    unit = F.normalize(known, dim=1)
    blocks = [
        (F.normalize(block, dim=1) @ unit.T).topk(min(count, len(known)), dim=1)
        for block in torch.split(asked, 1000)
    ]
    return torch.cat([block.values for block in blocks]), torch.cat([b.indices for b in blocks])


def _pixels(images: Images, row: int) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = images.pixels[row].cpu().numpy()
    return pixels
