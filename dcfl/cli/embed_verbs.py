"""`dcfl embed` and `dcfl neighbours`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dcfl.cli.options import (
    Best,
    ClientNumber,
    Folder,
    MethodFile,
    ModelFile,
    PictureFiles,
    run_own_files,
    which_model,
)
from dcfl.errors import DatasetCorrupt
from dcfl.system.printable import printable


class Layer(StrEnum):
    projection = "projection"
    features = "features"


WhichLayer = Annotated[
    Layer,
    typer.Option(
        help="What the method's term on embeddings sees, or the features that the classifier sees; "
        "they differ in models with a side head."
    ),
]
FeatureFile = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE.npz", help="The file to write.")
]
Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The page to write; if not given, neighbours.html in the run's folder."
    ),
]


def embed(
    folder: Folder,
    pictures: PictureFiles,
    out: FeatureFile = Path("features.npz"),
    layer: WhichLayer = Layer.projection,
    best: Best = False,
    client: ClientNumber = None,
    model_file: ModelFile = None,
) -> None:
    """The embeddings of pictures, with their file names and labels, in one .npz file."""
    from dcfl.trained.embed import embed_pictures, require_npz, write_embeddings

    require_npz(out)
    run_own_files(None, model_file)
    embedded = embed_pictures(folder, pictures, layer.value, which_model(folder, best, client))
    write_embeddings(out, embedded)
    count, width = embedded.features.shape
    print(printable(f"features  {out}: {count:,} pictures, {width} numbers each"))
    for file, reason in embedded.skipped.items():
        print(printable(f"dcfl: warning: {file}: skipped ({reason})"), file=sys.stderr)
    if embedded.skipped:
        sys.stdout.flush()
        total = count + len(embedded.skipped)
        raise DatasetCorrupt(f"{len(embedded.skipped):,} of {total:,} pictures were skipped")


def neighbours(
    folder: Folder,
    out: Page = None,
    images: Annotated[
        int, typer.Option(min=1, max=200, metavar="N", help="How many test images to show.")
    ] = 10,
    each: Annotated[
        int, typer.Option(min=1, max=50, metavar="K", help="How many neighbours of each.")
    ] = 7,
    layer: WhichLayer = Layer.projection,
    best: Best = False,
    method_file: MethodFile = None,
    model_file: ModelFile = None,
) -> None:
    """A page that shows, for some test images, the training images most similar to them."""
    from dcfl.runs.folder import RecordedRun
    from dcfl.trained.neighbours import find_neighbours
    from dcfl.trained.neighbours_page import write_neighbours
    from dcfl.trained.subject import open_subject

    run_own_files(method_file, model_file)
    which = which_model(folder, best)
    subject = open_subject(RecordedRun.open(folder), which)
    found = find_neighbours(subject, images, each, layer.value)
    page = write_neighbours(
        subject, found, layer.value, str(which), out or folder / "neighbours.html"
    )
    print(f"nearest neighbour of the right class  {found.agreement:.1f} %")
    print(printable(f"page  {page}"))
