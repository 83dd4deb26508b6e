"""The network of the board with scanners: an MLP with BatchNorm, which FedBN needs."""

from torch import nn


def normalised_mlp(channels: int, size: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * size * size, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
