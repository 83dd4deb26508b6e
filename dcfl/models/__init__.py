"""Models by name, for small images and other inputs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch

from dcfl.data.datasets import Size
from dcfl.errors import ConfigError
from dcfl.models.adapted import adapt
from dcfl.models.networks import (
    CNN,
    MLP,
    LeNet,
    LinearModel,
    Norm,
    ResNet8,
    ResNet18,
    SeriesCNN,
    TokenTransformer,
    require_head,
)
from dcfl.models.output import FeatureModel, Output
from dcfl.models.own_models import BUILT_IN, NAMED, OWN_MODELS, library_model, with_head
from dcfl.seeding import derived_seed
from dcfl.settings import Settings, key

__all__ = [
    "CNN",
    "MLP",
    "FeatureModel",
    "LeNet",
    "LinearModel",
    "ModelSettings",
    "Output",
    "ResNet8",
    "ResNet18",
    "adapt",
    "build_model",
]

NETWORKS: dict[str, type[CNN | ResNet8 | ResNet18]] = {
    "cnn": CNN,
    "cnn1d": SeriesCNN,
    "resnet8": ResNet8,
    "resnet18": ResNet18,
}


@dataclass(frozen=True)
class ModelSettings(Settings):
    """The [model] table. Norm and head do not depend on the method, so all share one backbone."""

    table_name: ClassVar = "model"

    # "cnn", "lenet", "resnet8", "resnet18", "timm:NAME", "torchvision:NAME", or the name of a
    # network whose file was given with --model-file. "linear" and "mlp" are for feature vectors,
    # "cnn1d" is for series, "transformer" for token ids.
    name: str = "cnn"
    # Channels of the first layer, which later layers double; "auto": 32 (cnn), 16 (resnet8) or 64
    # (resnet18). Of mlp: the units of its hidden layer, 256. Of transformer: of each token, 64.
    width: int | Literal["auto"] = key("auto", ge=2, le=1024)
    norm: Norm = "batch"  # "group" (2 groups), or "batch-nostats": no running statistics
    # "mlp256": a projection head before the classifier, as in MOON. "side256": beside it, as in
    # SupCon; terms on embeddings see the head's output, the classifier does not. Or another width.
    head: str = "none"
    # Initial weights: a .safetensors file, or the folder of a run; empty: they follow from the seed
    weights: str = key("", kind="place")
    weights_skip: tuple[str, ...] = ()  # parts that keep the seed's, such as ["classifier"]
    freeze: tuple[str, ...] = ()  # parts that are neither trained nor sent, such as ["stem"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.built_in and self.name not in OWN_MODELS and NAMED.fullmatch(self.name) is None:
            raise ConfigError(
                f"model.name: there is no network {self.name!r}: use {', '.join(BUILT_IN)}, "
                f"timm:NAME or torchvision:NAME, or give the file of your own with --model-file"
            )
        require_head(self.head)
        if self.weights_skip and not self.weights:
            raise ConfigError("model.weights_skip without model.weights: there is nothing to skip")
        if self.norm == "group" and self.width != "auto" and self.width % 2:
            raise ConfigError(
                f"model.width = {self.width} must be even for the two groups of model.norm"
            )
        if self.name not in (*NETWORKS, "mlp", "transformer") and self.width != "auto":
            raise ConfigError(f"model.width = {self.width}: {self.name} has layers of its own")
        none = "has no normalisation layers" if self.built_in else "says itself how it normalises"
        if self.name not in NETWORKS and self.norm != "batch":
            raise ConfigError(f'model.norm = "{self.norm}": {self.name} {none}')

    @property
    def built_in(self) -> bool:
        """Whether the network is dcfl's own."""
        return self.name in BUILT_IN

    def require_fitting(self, name: str, shape: tuple[int, ...], integers: bool) -> None:
        """Refuse a data set that the network is not for, by its inputs. Those of one's own may be
        for anything."""
        axes = len(shape)
        suited = {
            **dict.fromkeys(("linear", "mlp"), not integers),
            "cnn1d": axes == 2 and not integers,
            "transformer": axes == 1 and integers,
        }
        if self.name in OWN_MODELS or suited.get(self.name, axes == 3 and not integers):
            return
        images = "feature vectors" if axes == 1 else f"inputs of {list(shape)}"
        others = ", ".join(f'"{one}"' for one, suits in suited.items() if suits)
        remedy = f"use {others}, or a network of your own" if others else "use one of your own"
        raise ConfigError(
            f'model.name = "{self.name}" is not for {name}, which has '
            f"{'integers' if integers else images}: {remedy}"
        )

    @property
    def architecture(self) -> dict[str, Any]:
        """What is needed to build the model again, whatever its weights were."""
        others = ("weights", "weights_skip", "freeze")
        return {key: value for key, value in asdict(self).items() if key not in others}


def build_model(
    settings: ModelSettings, channels: int, size: Size, classes: int, seed: int
) -> FeatureModel:
    """A network by name, with initial weights that depend on the seed alone.

    Args:
        settings: Which network, and its parts. Its `weights` and `freeze` are the run's business.
        channels: Of the images: 1 for grey levels, 3 for RGB. A feature vector is an image of one
            pixel with many channels; of token ids, it is the number of different ones.
        size: Height and width of square images in pixels. Of other inputs, a tuple: all axes after
            the channels, such as `(T,)` for series [C, T] and token ids [T].
        classes: How many classes it tells apart.
        seed: Of the initial weights.

    Returns:
        A model in training mode.

    Example:
        >>> import dcfl, torch
        >>> settings = dcfl.ModelSettings("cnn", norm="group", head="side64")
        >>> model = dcfl.build_model(settings, channels=3, size=32, classes=10, seed=0)
        >>> model(torch.zeros(2, 3, 32, 32)).projection.shape
        torch.Size([2, 64])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, 0, 0, "initialisation"))
        least = size if isinstance(size, int) else min(size)
        if own := OWN_MODELS.get(settings.name):
            return with_head(own.build(channels, size, classes), settings.head)
        if not settings.built_in:
            network = library_model(settings.name, channels, least, classes)
            return with_head(network, settings.head)
        if settings.name == "lenet":
            if not isinstance(size, int):
                raise ConfigError(f'model.name = "lenet" needs square images, not {list(size)}')
            return LeNet(channels, size, classes, settings.head)
        width = 0 if settings.width == "auto" else settings.width
        numbers = channels * (size**2 if isinstance(size, int) else math.prod(size))
        if settings.name == "linear":
            return LinearModel(numbers, classes, settings.head)
        if settings.name == "mlp":
            return MLP(numbers, classes, settings.head, width)
        if settings.name == "transformer":
            return TokenTransformer(channels, least, classes, settings.head, width)
        return NETWORKS[settings.name](
            channels, least, classes, settings.norm, settings.head, width
        )
