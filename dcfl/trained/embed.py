"""The embeddings of pictures, in a file that other programs read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcfl.data.catalogue import is_named
from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.models.output import Embedding
from dcfl.runs.folder import RecordedRun
from dcfl.runs.model_file import Network, Which
from dcfl.system.storage import replacing
from dcfl.trained.classifier import open_classifier
from dcfl.trained.evaluate import ModelScoring
from dcfl.trained.subject import embed


class EmbeddedPictures(NamedTuple):
    features: NDArray[np.float32]  # [n, d]
    files: list[str]
    labels: NDArray[np.int64]  # of the class folder a picture lies in; -1: not known
    predicted: NDArray[np.int64]
    class_names: tuple[str, ...]
    skipped: dict[str, str]  # file: why


def embed_pictures(
    run_folder: Path,
    places: Iterable[str | Path],
    layer: Embedding = "projection",
    which: Which = "last",
    network: Network = None,
) -> EmbeddedPictures:
    """A hundred pictures at a time; what stays is their embeddings. `layer`: what the method's term
    on embeddings sees, or the features that the classifier sees; one and the same in a model
    without a side head. A place may be the name of a data set instead, as in data.dataset."""
    named = [str(place) for place in places]
    if len(named) == 1 and is_named(named[0]) and not Path(named[0]).exists():
        return _of_data_set(run_folder, named[0], layer, which, network)
    classifier = open_classifier(run_folder, which, network)
    features, predicted = [], []
    files: list[str] = []
    labels: list[int] = []
    skipped: dict[str, str] = {}
    for output, pictures, _ in classifier.look_at(named):
        for found, row in pictures:
            if isinstance(row, str):
                skipped[str(found.path)] = row
            else:
                files.append(str(found.path))
                labels.append(-1 if found.label is None else found.label)
        if output is not None:
            features.append(output.z(layer).numpy())
            predicted.append(output.logits.argmax(dim=1).numpy())
    if not files:
        raise DatasetCorrupt(f"none of the {len(skipped)} pictures can be read")
    return EmbeddedPictures(
        np.concatenate(features),
        files,
        np.array(labels, np.int64),
        np.concatenate(predicted),
        classifier.model.class_names,
        skipped,
    )


def _of_data_set(
    folder: Path, name: str, layer: Embedding, which: Which, network: Network
) -> EmbeddedPictures:
    scoring = ModelScoring.of(RecordedRun.open(folder), which, network)
    images = scoring.to_score(name).images
    features, logits = embed(scoring.model, images, scoring.preparation, layer)
    files = [f"{name}/{row}" for row in range(len(images))]
    found = (features.numpy(), files, images.labels.numpy(), logits.argmax(dim=1).numpy())
    return EmbeddedPictures(*found, scoring.model.class_names, {})


def require_npz(path: Path) -> None:
    """Call it before any time is spent."""
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: the name must end in .npz")


def write_embeddings(path: Path, embedded: EmbeddedPictures) -> None:
    with replacing(path) as partial, partial.open("wb") as stream:
        np.savez(
            stream,
            features=embedded.features,
            files=np.array(embedded.files),
            labels=embedded.labels,
            predicted=embedded.predicted,
            class_names=np.array(embedded.class_names),
        )
