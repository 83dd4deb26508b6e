"""The features of a whole data set, by a network that stays as it is: computed once, then kept."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dcfl.data import Dataset, Images, load_dataset
from dcfl.data.augment import measured
from dcfl.data.cache import cached
from dcfl.data.readers.arrays import Arrays
from dcfl.engines.placement import available_cores, choose_devices
from dcfl.engines.runner import model_for, reproducible
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.models import FeatureModel
from dcfl.models.own_models import OWN_MODELS
from dcfl.runs.fingerprint import own_code
from dcfl.system.wording import say
from dcfl.tensors import sha256
from dcfl.trained.subject import embed

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
