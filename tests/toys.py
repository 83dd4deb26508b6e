"""Small federations for tests, beside those of `dcfl.testing.contract`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dcfl.data import Augmentation, Dataset, FederatedData, Partition
from dcfl.data.augment import Preparation
from dcfl.engines.embedded import Embedded
from dcfl.engines.memories import Memories
from dcfl.engines.runner import ClientRunner
from dcfl.local_training import LocalTraining
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.testing.toys import CLASSES, TRAINING, toy_images, toy_model

# With a model of every client's own, or a part: tests/contract/test_own_methods.py has them on
# every engine and after a resume, with these models.
PERSONAL = {name: m for name, m in METHODS.items() if m.personal or m().has_own_model}.keys()
ZOO = {name for name, m in METHODS.items() if m.__module__.split(".")[2] in ("zoo", "personal")}
CONVOLUTIONAL = {"fedalign"}  # methods that refuse a network without a block of convolutions


def network_for(method: str, otherwise: FeatureModel) -> FeatureModel:
    """A network of the toys that the method can train: the given one, if it can."""
    return toy_model() if method in CONVOLUTIONAL else otherwise


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


def runner(
    method: str, model: FeatureModel, data: FederatedData, training: LocalTraining = TRAINING
) -> ClientRunner:
    return ClientRunner(METHODS[method](), model, data, training, seed=0)


def embedded(
    method: str, model: FeatureModel, data: FederatedData, training: LocalTraining = TRAINING
) -> Embedded:
    everything_fits = Memories(Path("never written"), budget=10**9)
    return Embedded(runner(method, model, data, training), everything_fits)
