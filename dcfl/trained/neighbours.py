"""Test images beside the training images most similar to them: found, and shown on a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dcfl.data import Images
from dcfl.errors import ConfigError
from dcfl.models.output import Embedding
from dcfl.report.document import Page, Section, Tile, write_page
from dcfl.report.text import number, plural, without_folders
from dcfl.seeding import generator_for
from dcfl.system.wording import printable
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


LONGEST_LABEL = 24  # characters under an image


def write_neighbours(
    subject: Subject, found: Neighbourhood, layer: Embedding, which: str, out: Path
) -> Path:
    held_out = subject.experiment.data.holdout > 0
    kind = "kept-back training images" if held_out else "test images"
    seen = "what the method's term sees" if layer == "projection" else "the classifier's input"
    facts = [
        ("Data set", without_folders(subject.dataset.name)),
        ("Model", f"{subject.experiment.model.name}, {which} round"),
        ("Method", subject.experiment.method.name),
        ("Embedding", seen),
        ("Accuracy", f"{number(found.accuracy)} % of {found.images:,} {kind}"),
        ("Searched", plural(found.searched, "training image")),
    ]
    page = Page(
        f"Nearest neighbours of {subject.run.folder.resolve().name}",
        facts,
        f"The most similar training image has the right class for "
        f"{number(found.agreement, 1)} % of the {kind}.",
        _sections(found, subject.dataset.class_names, kind),
    )
    return write_page(page, out)


def _sections(found: Neighbourhood, names: Sequence[str], kind: str) -> list[Section]:
    drawn = (
        f"Left one of the {kind} with what the model says of it; beside it the training images of "
        f"the highest cosine, in order. Green (✓): right, or of the same class; orange (✗): not."
    )
    wrong = (
        "Drawn from those that the model gets wrong. Where the neighbours are green all the same, "
        "it is the classifier that errs, not the embedding."
    )
    shown = (("Drawn at random", drawn, found.drawn), ("Classified wrongly", wrong, found.wrong))
    return [
        Section(title, [text], tiles=[_row(query, names) for query in queries])
        for title, text, queries in shown
        if queries
    ]


def _row(query: Query, names: Sequence[str]) -> list[Tile]:
    def name(label: int) -> str:
        return printable(names[label], LONGEST_LABEL)

    right = query.predicted == query.label
    verdict = "right" if right else f"taken for {name(query.predicted)}"
    tiles = [Tile(_source(query.pixels), name(query.label), verdict, right)]
    tiles += [
        Tile(_source(pixels), name(label), number(cosine, 3), label == query.label)
        for pixels, label, cosine in query.neighbours
    ]
    return tiles


def _source(pixels: NDArray[np.uint8]) -> str:
    stream = io.BytesIO()
    shown = pixels[..., 0] if pixels.shape[2] != 3 else pixels
    Image.fromarray(shown).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
