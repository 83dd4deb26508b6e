"""Small federations for tests: a few coloured squares, a small model, two or three clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dcfl.client import LocalTraining
from dcfl.data import Augmentation, ClientData, Dataset, FederatedData, Images, Partition
from dcfl.data.augment import Preparation
from dcfl.local_training import train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import Method
from dcfl.models import CNN, FeatureModel
from dcfl.models.layers import Norm
from dcfl.weights import snapshot

CLASSES = 4
TRAINING = LocalTraining(epochs=2, batch_size=8, lr=0.05)


def images(labels: Sequence[int], seed: int = 0) -> Images:
    """8x8 noise with a bright quarter that tells the class."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 120, (len(labels), 8, 8, 1), generator=generator, dtype=torch.uint8)
    for pixel, label in zip(pixels, labels, strict=True):
        row, column = 4 * (label % 2), 4 * (label // 2 % 2)
        pixel[row : row + 4, column : column + 4] += 100
    return Images(pixels, torch.tensor(labels, dtype=torch.int64))


def dataset(train: int = 60, test: int = 20) -> Dataset:
    every_class = np.arange(train + test) % CLASSES
    return Dataset(
        "toys",
        images(every_class[:train].tolist()),
        images(every_class[train:].tolist(), seed=1),
        tuple("abcd"),
        Preparation((0.3,), (0.3,), Augmentation(crop=1)),
    )


def client_data(labels: Sequence[int], augmentation: Augmentation | None = None) -> ClientData:
    preparation = Preparation((0.3,), (0.3,), augmentation or Augmentation(crop=1))
    return ClientData(images(labels), CLASSES, preparation)


def federated(clients: int = 3) -> FederatedData:
    toys = dataset()
    parts = list(np.array_split(np.arange(len(toys.train)), clients))
    return FederatedData(toys, Partition.of_parts(parts))


def model(norm: Norm = "batch", seed: int = 0) -> FeatureModel:
    torch.manual_seed(seed)
    return CNN(channels=1, size=8, classes=CLASSES, norm=norm)


def trained(
    method: Method,
    data: ClientData,
    *,
    norm: Norm = "batch",
    round: int = 1,
    weights: Tensors | None = None,
    shared: Tensors | None = None,
    memory: Tensors | None = None,
    training: LocalTraining = TRAINING,
    client: int = 0,
) -> tuple[ClientUpdate, Tensors]:
    """One client's round, starting from the same initial weights unless others are given."""
    network = model(norm)
    broadcast = Broadcast(round, weights or snapshot(network), shared or {})
    return train_client(method, network, data, broadcast, memory or {}, training, client, seed=0)


def two_rounds(
    method: Method, data: Sequence[ClientData], *, norm: Norm = "batch"
) -> tuple[list[ClientUpdate], Tensors]:
    """Two rounds of all clients, with the plain mean in between; returns the last replies and what
    the method shared with them. From the second round on, prototypes and memories are in play."""
    updates = [trained(method, own, norm=norm, client=i) for i, own in enumerate(data)]
    shared = method.merge({}, [update.upload for update, _ in updates], len(data))
    names = updates[0][0].weights
    mean = {
        name: torch.stack([u.weights[name].double() for u, _ in updates]).mean(0) for name in names
    }
    weights = {name: mean[name].to(names[name].dtype) for name in names}
    again = [
        trained(
            method, own, norm=norm, client=i, round=2, weights=weights, shared=shared, memory=memory
        )
        for i, (own, (_, memory)) in enumerate(zip(data, updates, strict=True))
    ]
    return [update for update, _ in again], shared
