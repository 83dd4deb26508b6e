"""The networks by name: a small CNN, LeNet, a linear model, an MLP, a CNN for series, a transformer
for token ids, and residual networks for small images, with a 3x3 stem, no max-pool, and stages that
double in width.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. ResNet-18 has stages of
64-128-256-512 channels and 11.17 M parameters for 10 classes. ResNet-8 is for CPUs: one block in
each of three stages, 16-32-64, 78 k parameters, and a stem that halves images of more than 16
pixels, which makes it four times as fast.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.models.output import FeatureModel, Output
from dcfl.system.wording import printable

Norm = Literal["batch", "group", "batch-nostats"]
HEADS = re.compile(r"none|(mlp|side)([1-9]\d{0,3})")  # with their width

NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": partial(nn.GroupNorm, 2),  # two groups, as in FedRCL and FedACG
    # Uses batch statistics in evaluation too, as in FedSOL: no buffers to average, but an image's
    # output depends on the rest of its batch (dcfl/data/client_data.py mixes the classes).
    "batch-nostats": partial(nn.BatchNorm2d, track_running_stats=False),
}


def require_head(head: str) -> None:
    if HEADS.fullmatch(head) is None:
        raise ConfigError(
            f'model.head = "{printable(head)}": use "none", "mlp256" (before the classifier) or '
            f'"side256" (beside it), or another width than 256'
        )


class HeadedModel(FeatureModel):
    def add_heads(self, width: int, classes: int, head: str) -> None:
        """Call it last in `__init__`, with the width of the pooled features."""
        kind, wide = head.rstrip("0123456789"), head.lstrip("abcdefghijklmnopqrstuvwxyz")
        before = kind == "mlp"
        self.head = perceptron(width, int(wide)) if before else nn.Identity()
        self.classifier = nn.Linear(int(wide) if before else width, classes)
        # Made last: the other initial weights are the same with and without it.
        self.side = perceptron(width, int(wide)) if kind == "side" else None

    def classified(self, pooled: Tensor, stages: Sequence[Tensor]) -> Output:
        embedding = self.head(pooled)
        projection = self.side(pooled) if self.side is not None else None
        return Output(self.classifier(embedding), embedding, tuple(stages), projection)


def perceptron(features: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))


def convolution(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class CNN(HeadedModel):
    """Strides 2-2-2, or 1-2-2 for images of up to 16 pixels, which are too small for more."""

    stage_layers = ("norms.0", "norms.1", "norms.2")

    last_block = ("convolutions.2", "norms.2")

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
        self.begin(channels, norm)
        self.convolutions = nn.ModuleList(
            self.convolution(widths[i], widths[i + 1], strides[i]) for i in range(3)
        )
        self.norms = nn.ModuleList(NORMS[norm](width) for width in widths[1:])
        self.add_heads(widths[-1], classes, head)

    def begin(self, channels: int, norm: Norm) -> None:
        """Make what comes before the first convolution."""

    def convolution(self, inputs: int, outputs: int, stride: int) -> nn.Conv2d:
        return convolution(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Output:
        maps, stages = images, []
        for convolve, normalise in zip(self.convolutions, self.norms, strict=True):
            before = normalise(convolve(maps))
            stages.append(before.mean(dim=(2, 3)))
            maps = F.relu_(before)
        return self.classified(maps.mean(dim=(2, 3)), stages)


class LeNet(HeadedModel):
    """Has no normalisation layers; needs images of at least 16 pixels."""

    stage_layers = ("convolution1", "convolution2")

    last_block = ("convolution2",)

    def __init__(self, channels: int, size: int, classes: int, head: str = "none") -> None:
        super().__init__()
        if size < 16:
            raise ConfigError(f'model.name = "lenet" needs images of 16 pixels or more, not {size}')
        self.convolution1 = nn.Conv2d(channels, 6, kernel_size=5)
        self.convolution2 = nn.Conv2d(6, 16, kernel_size=5)
        side = ((size - 4) // 2 - 4) // 2
        self.hidden1 = nn.Linear(16 * side * side, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.add_heads(84, classes, head)

    def forward(self, images: Tensor) -> Output:
        shallow = self.convolution1(images)
        # Pooling before the ReLU gives the same values with a quarter of the work.
        deep = self.convolution2(F.relu_(F.max_pool2d(shallow, 2)))
        maps = F.relu_(F.max_pool2d(deep, 2))
        hidden = F.relu_(self.hidden2(F.relu_(self.hidden1(maps.flatten(1)))))
        return self.classified(hidden, (shallow.mean(dim=(2, 3)), deep.mean(dim=(2, 3))))


class LinearModel(HeadedModel):
    """The embedding is the input itself, unless there is a head."""

    def __init__(self, features: int, classes: int, head: str = "none") -> None:
        super().__init__()
        self.add_heads(features, classes, head)

    def forward(self, images: Tensor) -> Output:
        vectors = images.flatten(1)
        return self.classified(vectors, (vectors,))


class MLP(HeadedModel):
    """One hidden layer of 256 units, or of another width; the embedding is what leaves it."""

    def __init__(self, features: int, classes: int, head: str = "none", width: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, width or 256)
        self.add_heads(width or 256, classes, head)

    def forward(self, images: Tensor) -> Output:
        before = self.hidden(images.flatten(1))
        return self.classified(F.relu(before), (before,))


class SeriesCNN(CNN):
    """For series [B, C, T]: normalised by its first layer, then three convolutions over time."""

    def begin(self, channels: int, norm: Norm) -> None:
        self.entry = nn.GroupNorm(1, channels) if norm == "group" else NORMS[norm](channels)

    def convolution(self, inputs: int, outputs: int, stride: int) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, (1, 7), (1, stride), (0, 3), bias=False)

    def forward(self, images: Tensor) -> Output:
        return super().forward(self.entry(images[:, :, None]))  # images of one row


class TokenBlock(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = math.gcd(width, 4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, tokens: Tensor, seen: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        parts = self.attention(self.norm1(tokens)).view(batch, length, 3 * self.heads, -1)
        queries, keys, values = parts.transpose(1, 2).chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(queries, keys, values, seen[:, None, None])
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        further: Tensor = self.outer(F.gelu(self.inner(self.norm2(tokens))))
        return tokens + further


class TokenTransformer(HeadedModel):
    """For token ids [B, T], of which 0 is padding: two blocks of 64 numbers for each token, or of
    another width, and the mean over the tokens."""

    def __init__(
        self, vocabulary: int, length: int, classes: int, head: str = "none", width: int = 0
    ) -> None:
        super().__init__()
        wide = width or 64
        self.tokens = nn.Embedding(vocabulary, wide)
        self.places = nn.Parameter(torch.randn(length, wide) * 0.02)
        self.blocks = nn.ModuleList(TokenBlock(wide) for _ in range(2))
        self.norm = nn.LayerNorm(wide)
        self.add_heads(wide, classes, head)

    def forward(self, images: Tensor) -> Output:
        seen = images != 0
        seen[:, 0] = True  # of an empty text too
        share = seen / seen.sum(dim=1, keepdim=True)
        tokens, stages = self.tokens(images) + self.places[: images.shape[1]], []
        for block in self.blocks:
            tokens = block(tokens, seen)
            stages.append((tokens * share[..., None]).sum(dim=1))
        return self.classified((self.norm(tokens) * share[..., None]).sum(dim=1), stages)


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
    """One or two blocks; the first may halve the image."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, blocks: int) -> None:
        super().__init__()
        self.first = BasicBlock(inputs, outputs, stride, norm)
        self.second = BasicBlock(outputs, outputs, 1, norm) if blocks == 2 else None

    def forward(self, maps: Tensor) -> Tensor:
        before: Tensor = self.first(maps)
        if self.second is not None:
            before = self.second(F.relu_(before))
        return before


class ResNet(HeadedModel):
    """`stages` holds the stem and the residual stages."""

    depth: ClassVar[int]  # stages
    stem_stride: ClassVar[int] = 1  # for images of more than 16 pixels
    blocks: ClassVar[int]  # in each stage
    usual_width: ClassVar[int]  # of the stem

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
        first = width or self.usual_width
        widths = (first, *(first * 2**stage for stage in range(self.depth)))
        stride = self.stem_stride if size > 16 else 1
        self.stem = nn.Sequential(convolution(channels, first, stride), NORMS[norm](first))
        self.stages = nn.ModuleList(
            Stage(before, after, 1 if before == after else 2, norm, self.blocks)
            for before, after in pairwise(widths)
        )
        self.last_block = (f"stages.{self.depth - 1}",)
        self.stage_layers = ("stem", *(f"stages.{number}" for number in range(self.depth)))
        self.add_heads(widths[-1], classes, head)

    def forward(self, images: Tensor) -> Output:
        before = self.stem(images)
        levels = [before.mean(dim=(2, 3))]
        for stage in self.stages:
            before = stage(F.relu_(before))
            levels.append(before.mean(dim=(2, 3)))
        return self.classified(F.relu_(before).mean(dim=(2, 3)), levels)


class ResNet18(ResNet):
    depth, blocks, usual_width = 4, 2, 64


class ResNet8(ResNet):
    depth, blocks, usual_width = 3, 1, 16
    stem_stride = 2
