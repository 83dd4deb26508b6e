"""How images become inputs: normalised, and augmented while they train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dcfl.data.readers.arrays import Pixels
from dcfl.messages import Tensors
from dcfl.system.transfers import on_device


@dataclass(frozen=True)
class Augmentation:
    crop: int = 0  # pixels of black padding before a random crop
    flip: bool = False  # mirrors half of the images
    rotation: float = 0.0  # degrees, drawn from [-rotation, rotation]; nearest pixel
    cutout: int = 0  # side of a square at a random place that is set to the mean

    @property
    def active(self) -> bool:
        return bool(self.crop or self.flip or self.rotation or self.cutout)

    def draw(self, count: int, height: int, width: int, generator: Generator) -> dict[str, Tensor]:
        """The random numbers for so many images, each [count, 1, 1]. On the CPU, so that they are
        the same whatever device the images are on."""
        drawn = {}
        if self.flip:
            drawn["mirrored"] = torch.rand(count, 1, 1, generator=generator) < 0.5
        if pad := self.crop:
            for axis in ("down", "right"):
                drawn[axis] = torch.randint(-pad, pad + 1, (count, 1, 1), generator=generator)
        if self.rotation:
            turn = torch.rand(count, 1, 1, generator=generator) * 2 - 1
            angle = turn * math.radians(self.rotation)
            drawn["cos"], drawn["sin"] = angle.cos(), angle.sin()
        if self.cutout:
            for axis, size in (("hole row", height), ("hole column", width)):
                drawn[axis] = torch.randint(0, size, (count, 1, 1), generator=generator)
        return drawn


@dataclass(frozen=True)
class Preparation:
    """What is done to pixels [n, H, W, C] on their way to the model: [n, C, H, W] in float32. To
    feature vectors [n, d]: normalisation alone. Other inputs go to it as they are."""

    # Per channel, of pixels in [0, 1]; per number of a feature vector; empty for other inputs
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = Augmentation()

    @property
    def per_channel(self) -> tuple[Tensor, Tensor]:
        """What the pixels of each channel are multiplied by, and what is then added."""
        return _row_of(self.mean, self.std, 1, torch.device("cpu"))

    def clean(self, pixels: Tensor) -> Tensor:
        """Pixels that are normalised and not augmented."""
        if not self.mean:  # a copy, so that no model can change the data
            return pixels.clone() if pixels.is_floating_point() else pixels.long()
        if pixels.dim() == 2:
            mean, std = _vectors_of(self.mean, self.std, pixels.device)
            return (pixels - mean).div_(std)
        scale, shift = _row_of(self.mean, self.std, pixels.shape[2], pixels.device)
        rows = pixels.float().flatten(2).mul_(scale).add_(shift)
        # Channels stay last in memory, which convolutions prefer: only the shape is permuted.
        return rows.view(pixels.shape).permute(0, 3, 1, 2)

    def augmented(self, bordered: Tensor, chosen: Tensor, drawn: Tensors) -> Tensor:
        """The `chosen` images, each transformed as `drawn` (`Augmentation.draw`) and normalised.

        `bordered` are pixels with a black frame of one pixel (`with_border`): what lies outside the
        image is read from it.
        """
        height, width = bordered.shape[1] - 2, bordered.shape[2] - 2
        rows, columns = _sources(drawn, height, width, bordered.device)
        rows, columns = rows.clamp(-1, height).add(1), columns.clamp(-1, width).add(1)
        # Each pixel's position in memory; an index per axis would take three look-ups.
        place = (chosen[:, None, None] * (height + 2) + rows) * (width + 2) + columns
        pixels = bordered.flatten(0, 2).index_select(0, place.flatten())
        images = self.clean(pixels.view(*place.shape, -1))
        if self.augmentation.cutout:
            hole = _hole(drawn, self.augmentation.cutout, height, width)
            images = images.masked_fill(hole[:, None], 0.0)
        return images


@lru_cache
def _row_of(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What a row of pixels is multiplied by, and what is then added. A whole row, because three
    channels are too few for vector instructions."""
    scale = torch.tensor([1 / (255 * deviation) for deviation in std]).repeat(width)
    shift = torch.tensor([-m / d for m, d in zip(mean, std, strict=True)]).repeat(width)
    return on_device(scale, device), on_device(shift, device)


@lru_cache
def _vectors_of(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    return on_device(torch.tensor(mean), device), on_device(torch.tensor(std), device)


def with_border(pixels: Tensor) -> Tensor:
    return F.pad(pixels, (0, 0, 1, 1, 1, 1))


def _sources(
    drawn: Tensors, height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The row and column that each output pixel is taken from; both broadcast to [n, H, W]."""
    rows = torch.arange(height, device=device).view(1, -1, 1)
    columns = torch.arange(width, device=device).view(1, 1, -1)
    if "mirrored" in drawn:
        columns = torch.where(drawn["mirrored"], width - 1 - columns, columns)
    if "down" in drawn:
        rows, columns = rows + drawn["down"], columns + drawn["right"]
    if "cos" in drawn:
        cos, sin = drawn["cos"], drawn["sin"]
        down, right = rows - (height - 1) / 2, columns - (width - 1) / 2
        rows = (down * cos - right * sin + (height - 1) / 2).round().long()
        columns = (down * sin + right * cos + (width - 1) / 2).round().long()
    return rows, columns


def _hole(drawn: Tensors, side: int, height: int, width: int) -> Tensor:
    """A square around a random pixel [n, H, W]; the image's border cuts it off."""
    row, column = drawn["hole row"], drawn["hole column"]
    down = torch.arange(height, device=row.device).view(1, -1, 1) - row
    right = torch.arange(width, device=row.device).view(1, 1, -1) - column
    low, high = -(side // 2), side - side // 2
    return (down >= low) & (down < high) & (right >= low) & (right < high)


def usual_augmentation(size: int, flip: bool) -> Augmentation:
    return Augmentation(crop=size // 8, flip=flip)


def measured(pixels: Pixels, flip: bool) -> Preparation:
    """Mean and deviation of each channel over (at most 10,000 of) the training images, or of each
    number over all feature vectors; none of other inputs."""
    if pixels.dtype == np.float32 and pixels.ndim == 2:
        exact = pixels.astype(np.float64)
        centre, spread = exact.mean(axis=0), exact.std(axis=0)
        # A number that is the same in all of them is not scaled.
        spread[spread < 1e-6 * np.abs(centre).clip(min=1e-6)] = 1.0
        rounded = [tuple(x.astype(np.float32).tolist()) for x in (centre, spread)]
        return Preparation(rounded[0], rounded[1])
    if pixels.dtype != np.uint8:
        return Preparation((), ())
    pixels = pixels[:: max(len(pixels) // 10_000, 1)]
    levels = [np.bincount(pixels[..., c].ravel(), minlength=256) for c in range(pixels.shape[3])]
    shades = np.arange(256) / 255
    means = [float(np.average(shades, weights=count)) for count in levels]
    deviations = [
        float(np.sqrt(np.average((shades - mean) ** 2, weights=count)))
        for mean, count in zip(means, levels, strict=True)
    ]
    size = min(pixels.shape[1:3])
    spreads = [max(round(one, 4), 0.01) for one in deviations]  # not 0, for blank images
    centres = [round(mean, 4) for mean in means]
    return Preparation(tuple(centres), tuple(spreads), usual_augmentation(size, flip))
