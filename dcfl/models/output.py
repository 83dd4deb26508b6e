"""The base class of models, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from dcfl.data.augment import Preparation
from dcfl.data.datasets import Size
from dcfl.errors import ConfigError
from dcfl.models.parts import within

Embedding = Literal["projection", "features"]


class Output(NamedTuple):
    """A model's output for a batch: class scores, the embedding, features of each stage."""

    logits: Tensor  # [B, classes]
    embedding: Tensor  # [B, d], the classifier's input: pooled features or the head's output
    stages: tuple[Tensor, ...]  # [B, channels]: pooled, before the ReLU, shallow to deep
    projection: Tensor | None = None  # [B, width], of a side head, if the model has one

    def z(self, which: Embedding = "projection") -> Tensor:
        """What a term on embeddings sees: the side head's output, or what the classifier sees."""
        if which == "features" or self.projection is None:
            return self.embedding
        return self.projection

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Output:
        """The same output with each tensor changed."""
        stages = tuple(change(stage) for stage in self.stages)
        side = None if self.projection is None else change(self.projection)
        return Output(change(self.logits), change(self.embedding), stages, side)


class FeatureModel(nn.Module):
    """A module that maps images [B, C, H, W], or other inputs, to an `Output`; derive your own.

    A model from `dcfl.load_model` knows its class names and how to prepare images:
    `model(model.preparation.clean(pixels))` for uint8 pixels [n, H, W, C], where `image_shape` is
    H, W, C.

    Example:
        >>> import dcfl, torch
        >>> class Linear(dcfl.FeatureModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.classifier = torch.nn.Linear(64, 10)
        ...
        ...     def forward(self, images):
        ...         pixels = images.flatten(1)
        ...         return dcfl.Output(self.classifier(pixels), pixels, (pixels,))
        >>> dcfl.run(model=Linear(), federation={"rounds": 1}).summary.parameters
        650
    """

    class_names: tuple[str, ...] = ()
    preparation: Preparation | None = None
    # Height, width, channels of those pixels; of a feature vector 1, 1, d; else as in the data set
    image_shape: tuple[int, ...] | None = None
    built_for: tuple[int, Size] | None = None  # channels and size: see `build_model`
    autocast: torch.dtype | None = None  # float16 or bfloat16 inside; outputs are float32
    frozen_parts: tuple[str, ...] = ()  # names of modules; see dcfl/models/parts.py
    personal_parts: tuple[str, ...] = ()  # names of modules; see dcfl/models/parts.py
    last_block: tuple[str, ...] = ()  # the last convolutions: names of modules, run one by one

    def forward(self, images: Tensor) -> Output:
        raise TypeError(f"{type(self).__name__} must define forward(images) -> Output")

    stage_layers: tuple[str, ...] = ()  # modules whose outputs, pooled, are the stages

    def maps(self, images: Tensor) -> tuple[Output, tuple[Tensor, ...]]:
        """The output for a batch, and its stages before they are pooled: [B, C, H, W]."""
        if not self.stage_layers:
            raise ConfigError(f"{type(self).__name__} has no maps: set stage_layers in its class")
        found: list[Tensor] = []  # copies: the next layer works in place
        hooks = [
            self.get_submodule(name).register_forward_hook(
                lambda *said: found.append(said[2].clone())
            )
            for name in self.stage_layers
        ]
        try:
            return self(images), tuple(found)
        finally:
            for hook in hooks:
                hook.remove()

    def train(self, mode: bool = True) -> Self:
        """Switch all but the frozen parts, which stay in evaluation mode."""
        super().train(mode)
        self.settle_frozen()
        return self

    def settle_frozen(self) -> None:
        """Put the frozen parts into evaluation mode, whatever mode the others are in."""
        if self.frozen_parts:
            for name, module in self.named_modules():
                if within(name, self.frozen_parts):
                    module.eval()

    def __call__(self, images: Tensor) -> Output:
        if self.autocast is None:
            output: Output = super().__call__(images)
            return output
        with torch.autocast(images.device.type, self.autocast):
            output = super().__call__(images)
        return output.mapped(Tensor.float)
