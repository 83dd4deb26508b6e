"""A compact network for small images and CPUs: three 3x3 convolutions of 32, 64 and 128 channels,
or of another width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.models.layers import NORMS, HeadedModel, Norm, convolution
from dcfl.models.output import Output


class CNN(HeadedModel):
    """Strides 2-2-2, or 1-2-2 for images of up to 16 pixels, which are too small for more."""

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        norm: Norm = "batch",
        head: str = "none",
        width: int = 0,
    ) -> None:
        super().__init__()
        first = width or 32
        widths = (channels, first, 2 * first, 4 * first)
        strides = (1 if size <= 16 else 2, 2, 2)
        self.convolutions = nn.ModuleList(
            convolution(widths[i], widths[i + 1], strides[i]) for i in range(3)
        )
        self.norms = nn.ModuleList(NORMS[norm](width) for width in widths[1:])
        self.add_heads(widths[-1], classes, head)

    def forward(self, images: Tensor) -> Output:
        maps, stages = images, []
        for convolve, normalise in zip(self.convolutions, self.norms, strict=True):
            before = normalise(convolve(maps))
            stages.append(before.mean(dim=(2, 3)))
            maps = F.relu_(before)
        return self.classified(maps.mean(dim=(2, 3)), stages)
