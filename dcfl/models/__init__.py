"""Models for small images, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dcfl.models.cnn import CNN
from dcfl.models.layers import Head, Norm
from dcfl.models.output import FeatureModel, Output
from dcfl.models.resnet import ResNet18
from dcfl.seeding import derived_seed

__all__ = ["CNN", "FeatureModel", "ModelSettings", "Output", "ResNet18", "build_model"]


@dataclass(frozen=True)
class ModelSettings:
    """The [model] table. Norm and head apply to every method alike, so backbones are the same."""

    name: Literal["cnn", "resnet18"] = "cnn"
    norm: Norm = "batch"  # "group" (2 groups), or "batch-nostats": no running statistics
    head: Head = "none"  # "mlp256": a projection head before the classifier, as in MOON


def build_model(
    settings: ModelSettings, channels: int, size: int, classes: int, seed: int
) -> FeatureModel:
    """The named model, its initial weights derived from the seed and from nothing else."""
    network = {"cnn": CNN, "resnet18": ResNet18}[settings.name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, 0, 0, "initialisation"))
        model: FeatureModel = network(channels, size, classes, settings.norm, settings.head)
    return model
