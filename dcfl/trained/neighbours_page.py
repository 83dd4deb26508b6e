"""The page that shows test images beside the training images most similar to them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dcfl.models.output import Embedding
from dcfl.report.shell import rendered
from dcfl.report.text import number, plural, without_folders
from dcfl.system.printable import printable
from dcfl.system.storage import storage, write_whole
from dcfl.trained.neighbours import Neighbourhood, Query
from dcfl.trained.subject import Subject

LONGEST_LABEL = 24  # characters under an image


@dataclass(frozen=True)
class Tile:
    source: str  # a data: address
    label: str
    note: str
    good: bool  # of the class of the row's test image


@dataclass(frozen=True)
class Section:
    title: str
    paragraph: str
    rows: Sequence[Sequence[Tile]]  # the test image first


def write_neighbours(
    subject: Subject, found: Neighbourhood, layer: Embedding, which: str, out: Path
) -> Path:
    page = render(subject, found, layer, which)
    with storage(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page)
    return out


def render(subject: Subject, found: Neighbourhood, layer: Embedding, which: str) -> str:
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
    return rendered(
        "neighbours.html.j2",
        title=f"Nearest neighbours of {subject.run.folder.resolve().name}",
        facts=facts,
        headline=f"The most similar training image has the right class for "
        f"{number(found.agreement, 1)} % of the {kind}.",
        cautions=[],
        sections=_sections(found, subject.dataset.class_names, kind),
    )


def _sections(found: Neighbourhood, names: Sequence[str], kind: str) -> list[Section]:
    sections = [
        Section(
            "Drawn at random",
            f"Left one of the {kind} with what the model says of it; beside it the training images "
            f"of the highest cosine, in order. Green (✓): right, or of the same class; orange (✗): "
            f"not.",
            [_row(query, names) for query in found.drawn],
        )
    ]
    if found.wrong:
        sections.append(
            Section(
                "Classified wrongly",
                "Drawn from those that the model gets wrong. Where the neighbours are green all "
                "the same, it is the classifier that errs, not the embedding.",
                [_row(query, names) for query in found.wrong],
            )
        )
    return sections


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
