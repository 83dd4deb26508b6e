"""Small federations for tests, beside those of `dcfl.checking`."""

from __future__ import annotations

import numpy as np

from dcfl.checking import CLASSES, toy_images
from dcfl.data import Augmentation, Dataset, FederatedData, Partition
from dcfl.data.augment import Preparation


def dataset(train: int = 60, test: int = 20) -> Dataset:
    every_class = np.arange(train + test) % CLASSES
    return Dataset(
        "toys",
        toy_images(every_class[:train].tolist()),
        toy_images(every_class[train:].tolist(), seed=1),
        tuple("abcd"),
        Preparation((0.3,), (0.3,), Augmentation(crop=1)),
    )


def federated(clients: int = 3) -> FederatedData:
    toys = dataset()
    parts = list(np.array_split(np.arange(len(toys.train)), clients))
    return FederatedData(toys, Partition.of_parts(parts))
