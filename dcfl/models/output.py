"""The base class of models, and what they return."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dcfl.data.augment import Preparation


class Output(NamedTuple):
    """A model's output for a batch: class scores, the embedding, features of each stage."""

    logits: Tensor  # [B, classes]
    embedding: Tensor  # [B, d], the classifier's input: pooled features or the head's output
    stages: tuple[Tensor, ...]  # [B, channels]: pooled, before the ReLU, shallow to deep


class FeatureModel(nn.Module):
    """A module that maps images [B, C, H, W] to an `Output`; derive your own from it.

    A model from `dcfl.load_model` knows its class names and how to prepare images:
    `model(model.preparation.clean(pixels))` for uint8 pixels [n, H, W, C].

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
    autocast: torch.dtype | None = None  # float16 or bfloat16 inside; outputs are float32

    def forward(self, images: Tensor) -> Output:
        raise TypeError(f"{type(self).__name__} must define forward(images) -> Output")

    def __call__(self, images: Tensor) -> Output:
        if self.autocast is None:
            output: Output = super().__call__(images)
            return output
        with torch.autocast(images.device.type, self.autocast):
            output = super().__call__(images)
        stages = tuple(stage.float() for stage in output.stages)
        return Output(output.logits.float(), output.embedding.float(), stages)
