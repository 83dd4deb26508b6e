"""Models for small images, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dcfl.errors import require
from dcfl.models.cnn import CNN
from dcfl.models.layers import Norm, require_head
from dcfl.models.lenet import LeNet
from dcfl.models.output import FeatureModel, Output
from dcfl.models.resnet import ResNet18
from dcfl.seeding import derived_seed

__all__ = ["CNN", "FeatureModel", "LeNet", "ModelSettings", "Output", "ResNet18", "build_model"]


@dataclass(frozen=True)
class ModelSettings:
    """The [model] table. Norm and head do not depend on the method, so all share one backbone."""

    name: Literal["cnn", "lenet", "resnet18"] = "cnn"
    norm: Norm = "batch"  # "group" (2 groups), or "batch-nostats": no running statistics
    # "mlp256": a projection head before the classifier, as in MOON. "side256": beside it, as in
    # SupCon; terms on embeddings see the head's output, the classifier does not. Or another width.
    head: str = "none"

    def __post_init__(self) -> None:
        require_head(self.head)
        require(
            self.name != "lenet" or self.norm == "batch",
            f'model.norm = "{self.norm}": lenet has no normalisation layers',
        )


def build_model(
    settings: ModelSettings, channels: int, size: int, classes: int, seed: int
) -> FeatureModel:
    """Build the named model; its initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, 0, 0, "initialisation"))
        if settings.name == "lenet":
            return LeNet(channels, size, classes, settings.head)
        network = {"cnn": CNN, "resnet18": ResNet18}[settings.name]
        return network(channels, size, classes, settings.norm, settings.head)
