"""Embeddings: of pictures by a run's model, and of a whole data set by a network that stays as it
is, computed once; in files that other programs read."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dcfl.data import Dataset, Images, load_dataset
from dcfl.data.augment import measured
from dcfl.data.cache import cached
from dcfl.data.catalogue import is_named
from dcfl.data.readers.arrays import Arrays
from dcfl.engines.placement import available_cores, choose_devices
from dcfl.engines.runner import model_for, reproducible
from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.experiment import Experiment
from dcfl.models import FeatureModel
from dcfl.models.output import Embedding
from dcfl.models.own_models import OWN_MODELS
from dcfl.runs.folder import RecordedRun
from dcfl.runs.identity import own_code
from dcfl.runs.model_file import Network, Which
from dcfl.system.storage import replacing
from dcfl.system.wording import say
from dcfl.tensors import sha256
from dcfl.trained.evaluate import ModelScoring
from dcfl.trained.predict import open_classifier
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


CHUNK = 500  # images that a thread takes at a time


def embed_dataset(experiment: Experiment, size: int = 0) -> Dataset:
    """The experiment's data with what its network makes of each image in place of the pixels:
    labels, sites, groups and the split into training and test images stay. `size`: of the images
    that the network gets, in pixels; 0: as they are."""
    settings = experiment.seeded_data
    settings.require_here()
    if settings.split_file:
        raise ConfigError("data.partition: leave the split to runs; its file fits the features too")
    if not experiment.model.weights and experiment.model.name not in OWN_MODELS:
        raise ConfigError(
            f"{experiment.model.name} would have random weights: model.weights names a file of "
            f"trained ones, or a run's folder"
        )
    # Pictures in files are read in that size.
    dataset = load_dataset(replace(settings, image_size=size) if size else settings)
    if not dataset.train.pictures:
        raise ConfigError(f"{dataset.name} has no pictures: train on it as it is")
    model = model_for(experiment, replace(dataset, train=_resized(dataset.train[:2], size)))

    train, test = dataset.train, dataset.test

    def computed() -> Arrays:
        found, labels = _features(model, dataset, size), (train.labels.numpy(), test.labels.numpy())
        parts = found[: len(train)], labels[0], found[len(train) :], labels[1]
        return Arrays(*parts, dataset.class_names)

    own = OWN_MODELS.get(experiment.model.name)
    identity = {
        "data": dataset.fingerprint,
        "network": own_code(experiment.method, model, own.file if own else None)["model"],
        "weights": sha256(model.state_dict()),
        "size": size,
    }
    arrays = cached("features", [], identity, computed)
    return replace(
        dataset,
        train=replace(train, pixels=torch.from_numpy(arrays.train_pixels)),
        test=replace(test, pixels=torch.from_numpy(arrays.test_pixels)),
        preparation=measured(arrays.train_pixels, flip=False),
    )


def _features(model: FeatureModel, dataset: Dataset, size: int) -> NDArray[np.float32]:
    """Of the training images, then of the test images. Every core works on a chunk of its own, with
    one thread: the bits do not depend on the number of cores."""
    device = choose_devices("auto")[0]
    workers = available_cores() if device.type == "cpu" else 1
    free: SimpleQueue[FeatureModel] = SimpleQueue()
    for _ in range(workers):
        free.put(copy.deepcopy(model).to(device))

    def look(chunk: Images) -> NDArray[np.float32]:
        own = free.get()
        try:
            return embed(own, _resized(chunk, size).to(device), dataset.preparation)[0].numpy()
        finally:
            free.put(own)

    parts = (dataset.train, dataset.test)
    chunks = [part[at : at + CHUNK] for part in parts for at in range(0, len(part), CHUNK)]
    began, found = time.monotonic(), []
    with reproducible(1), ThreadPoolExecutor(workers) as pool:
        for features in pool.map(look, chunks):
            found.append(features)
            if len(found) % max(1, len(chunks) // 10) == 0:
                left = (time.monotonic() - began) * (len(chunks) / len(found) - 1)
                say(f"features  {len(found) / len(chunks):.0%}  {left:.0f} s left")
    return np.concatenate(found)


def _resized(images: Images, size: int) -> Images:
    if not size or images.pixels.shape[1:3] == (size, size):
        return images
    channels_first = images.pixels.permute(0, 3, 1, 2)
    pixels = F.interpolate(channels_first, (size, size), mode="bilinear", antialias=True)
    return replace(images, pixels=pixels.permute(0, 2, 3, 1).contiguous())
