"""The images of one client, as batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcfl.data.augment import Preparation, with_border
from dcfl.data.datasets import Dataset, Images
from dcfl.data.splits.partition import Partition
from dcfl.messages import Tensors
from dcfl.seeding import generator_for
from dcfl.system.transfers import on_device, to_device


@dataclass(frozen=True)
class Batch:
    """What an objective is a function of: some images of one client with their labels."""

    images: Tensor  # [B, C, H, W], float32, normalised
    labels: Tensor  # [B], int64
    second_view: Tensor | None = None  # the same images transformed again, if wanted
    epoch: int = 0  # of the client's visit, counted from 0


@dataclass(frozen=True)
class ClientData:
    """One client's images and labels, resident on the device; nothing is decoded per sample."""

    images: Images  # `images.pixels` [n, C, H, W] and `images.labels` [n]
    classes: int  # of the data set: a client may have images of fewer
    preparation: Preparation  # augmentation and normalisation, before images go into the model

    def __len__(self) -> int:
        return len(self.images)

    def training_batches(
        self, epochs: int, batch_size: int, seed: int, round: int, client: int, second_view: bool
    ) -> Iterator[Batch]:
        """Shuffled and augmented, `epochs` times. The last batch may be smaller.

        A batch of one is left out: it has neither batch statistics nor pairs.
        """
        order = generator_for(seed, round, client, "order")
        first = generator_for(seed, round, client, "augmentation")
        second = generator_for(seed, round, client, "second view") if second_view else None
        pixels = self.images.pixels
        if self.preparation.augmentation.active:
            pixels = with_border(pixels)
        starts = range(0, len(self) - 1, batch_size)  # not at the last image
        sizes = [min(batch_size, len(self) - start) for start in starts]
        for epoch in range(epochs):
            # All that is drawn for an epoch goes to the device at once, not step by step.
            permutation = on_device(torch.randperm(len(self), generator=order), pixels.device)
            chosen = torch.split(permutation[: sum(sizes)], sizes)
            views = self._draws(sizes, first)
            others = self._draws(sizes, second) if second else [None] * len(sizes)
            for rows, view, other in zip(chosen, views, others, strict=True):
                yield Batch(
                    self._view(pixels, rows, view),
                    self.images.labels[rows],
                    None if other is None else self._view(pixels, rows, other),
                    epoch,
                )

    def _draws(self, sizes: list[int], generator: torch.Generator) -> list[Tensors]:
        if not self.preparation.augmentation.active:
            return [{}] * len(sizes)
        height, width = self.images.pixels.shape[1:3]
        augmentation = self.preparation.augmentation
        batches = [augmentation.draw(size, height, width, generator) for size in sizes]
        names = batches[0] if batches else {}
        epoch = {name: torch.cat([batch[name] for batch in batches]) for name in names}
        epoch = to_device(epoch, self.images.pixels.device)
        parts = {name: torch.split(drawn, sizes) for name, drawn in epoch.items()}
        return [{name: part[i] for name, part in parts.items()} for i in range(len(sizes))]

    def _view(self, pixels: Tensor, chosen: Tensor, drawn: Tensors) -> Tensor:
        if self.preparation.augmentation.active:
            return self.preparation.augmented(pixels, chosen, drawn)
        return self.preparation.clean(pixels.index_select(0, chosen))

    def clean_batches(self, model: nn.Module) -> Iterator[Batch]:
        """All images once, without augmentation, in the batches that suit `model`."""
        return clean_batches(self.images, self.preparation, model)


def clean_batches(
    images: Images, preparation: Preparation, model: nn.Module, part: tuple[int, int] | None = None
) -> Iterator[Batch]:
    """All images once, without augmentation; with `part`, the batches that begin in that range.

    They come in stored order, except for a model that normalises by the batch: it gets images of
    all kinds together, in batches that depend neither on the order of the images nor on the device.
    """
    mixed = normalises_by_batch(model)
    count = len(images)
    for start, end in mixed_bounds(count) if mixed else bounds(count, efficient_batch(images)):
        if part is None or part[0] <= start < part[1]:
            chosen = images[images.mixed_order[start:end] if mixed else slice(start, end)]
            yield Batch(preparation.clean(chosen.pixels), chosen.labels)


def normalises_by_batch(model: nn.Module) -> bool:
    """Whether it does so in evaluation too: its output for an image depends on those beside it."""
    return any(
        isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None
        for layer in model.modules()
    )


def efficient_batch(images: Images) -> int:
    """Beyond a hundred images the maps fall out of a core's cache; a GPU wants more to do."""
    return 1000 if images.labels.is_cuda else 100


MIXED = 100  # images, or a few more, that a model without running statistics normalises by


def mixed_bounds(count: int) -> list[tuple[int, int]]:
    """Where batches of almost equal size begin and end: a small last batch would have unusual
    statistics."""
    batches = max(1, count // MIXED)
    edges = [count * number // batches for number in range(batches + 1)]
    return [pair for pair in pairwise(edges) if count]


def bounds(count: int, size: int) -> list[tuple[int, int]]:
    """Where batches begin and end. A single last image joins the batch before."""
    starts = range(0, max(count - 1, min(count, 1)), size)
    return list(zip(starts, [*starts[1:], count], strict=True))


@dataclass(frozen=True)
class FederatedData:
    dataset: Dataset
    partition: Partition
    pooled: bool = False  # every client trains on the images of all

    @property
    def sizes(self) -> NDArray[np.int64]:
        sizes = self.partition.sizes
        return np.full_like(sizes, sizes.sum()) if self.pooled else sizes

    def label_mixes(self) -> Tensor:
        """Each client's share of each class: float64 [clients, classes], rows sum to one."""
        labels = self.dataset.train.labels.cpu().numpy()
        counts = torch.from_numpy(self.partition.counts(labels, self.dataset.classes)).double()
        return counts / counts.sum(dim=1, keepdim=True)

    def client(self, client: int) -> ClientData:
        train = self.dataset.train
        owned = self.partition.indices if self.pooled else self.partition.of(client)
        indices = on_device(torch.from_numpy(owned), train.labels.device)
        images = Images(train.pixels.index_select(0, indices), train.labels[indices])
        return ClientData(images, self.dataset.classes, self.dataset.preparation)
