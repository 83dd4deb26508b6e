"""ResNet-18 for small images: a 3x3 stem with stride 1, no max-pool, stages 64-128-256-512.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016; 11.17 M parameters for 10
classes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.models.layers import NORMS, HeadedModel, Norm, convolution
from dcfl.models.output import Output


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. Returns the sum before the ReLU, as FedRCL needs it."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.convolution1 = convolution(inputs, outputs, stride)
        self.norm1 = NORMS[norm](outputs)
        self.convolution2 = convolution(outputs, outputs)
        self.norm2 = NORMS[norm](outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            resample = convolution(inputs, outputs, stride, kernel=1)
            self.shortcut = nn.Sequential(resample, NORMS[norm](outputs))

    def forward(self, maps: Tensor) -> Tensor:
        inner = F.relu_(self.norm1(self.convolution1(maps)))
        residual: Tensor = self.norm2(self.convolution2(inner))
        return residual.add_(self.shortcut(maps))


class Stage(nn.Module):
    """Two blocks; the first may halve the image."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.first = BasicBlock(inputs, outputs, stride, norm)
        self.second = BasicBlock(outputs, outputs, 1, norm)

    def forward(self, maps: Tensor) -> Tensor:
        before: Tensor = self.second(F.relu_(self.first(maps)))
        return before


class ResNet18(HeadedModel):
    """`stages` holds five levels: the stem and the four residual stages."""

    def __init__(
        self, channels: int, size: int, classes: int, norm: Norm = "batch", head: str = "none"
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(channels, 64), NORMS[norm](64))
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.ModuleList(
            Stage(widths[i], widths[i + 1], stride=1 if i == 0 else 2, norm=norm) for i in range(4)
        )
        self.add_heads(widths[-1], classes, head)

    def forward(self, images: Tensor) -> Output:
        before = self.stem(images)
        levels = [before.mean(dim=(2, 3))]
        for stage in self.stages:
            before = stage(F.relu_(before))
            levels.append(before.mean(dim=(2, 3)))
        return self.classified(F.relu_(before).mean(dim=(2, 3)), levels)
