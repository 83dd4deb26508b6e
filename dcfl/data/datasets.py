"""A data set in memory, as uint8 images or feature vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcfl.data.augment import Augmentation, Preparation
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.seeding import generator_for
from dcfl.system.transfers import on_device, settled, to_host


@dataclass(frozen=True)
class Images:
    pixels: Tensor  # uint8 [n, H, W, C], or feature vectors: float32 [n, d]
    labels: Tensor  # int64 [n]
    # int64 [n]: those with the same number, such as a patient's, stay together in every split.
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        form = (self.pixels.dtype, self.pixels.ndim)
        if form not in ((torch.uint8, 4), (torch.float32, 2)):
            found = f"{type(self.pixels).__name__} of {form[0]} {list(self.pixels.shape)}"
            raise DatasetCorrupt(
                f"images must be tensors, uint8 [n, height, width, channels], and feature vectors "
                f"float32 [n, length], not {found}: dcfl.Dataset.from_arrays makes them of arrays "
                f"of any kind"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise DatasetCorrupt(
                f"labels must be one int64 per image ({len(self.pixels)}), "
                f"not {self.labels.dtype} {list(self.labels.shape)}"
            )
        if self.groups is not None and self.groups.shape != self.labels.shape:
            raise DatasetCorrupt(
                f"groups must be one number per image ({len(self.pixels)}), "
                f"not {list(self.groups.shape)}"
            )

    @property
    def vectors(self) -> bool:
        """Whether these are feature vectors instead of images."""
        return self.pixels.dim() == 2

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Tensor | slice) -> Images:
        groups = None if self.groups is None else self.groups[which]
        return Images(self.pixels[which], self.labels[which], groups)

    def to(self, device: torch.device) -> Images:
        groups = None if self.groups is None else settled(self.groups, device)
        return Images(settled(self.pixels, device), settled(self.labels, device), groups)

    @cached_property
    def mixed_order(self) -> Tensor:
        """A shuffle that depends on the images and not on their order: by the hash of their pixels,
        and by label where two are equal."""
        here = to_host({"pixels": self.pixels, "labels": self.labels})
        keys = [
            (hashlib.sha256(image.tobytes()).digest(), label)
            for image, label in zip(here["pixels"].numpy(), here["labels"].tolist(), strict=True)
        ]
        order = sorted(range(len(self)), key=keys.__getitem__)
        return on_device(torch.tensor(order, dtype=torch.int64), self.labels.device)

    def sample(self, count: int) -> Images:
        """At most so many of the images."""
        return self if count >= len(self) else self[self.sampled(count)]

    def sampled(self, count: int) -> Tensor:
        """The rows of so many. Which ones depends on their pixels alone, not on a seed or on how
        the files are sorted."""
        return self.mixed_order[:count].sort().values


@dataclass(frozen=True)
class Dataset:
    """Training and test images in memory, with their classes and how they become inputs."""

    name: str
    train: Images
    test: Images
    class_names: tuple[str, ...]
    preparation: Preparation  # normalisation, and the augmentation that suits these images
    partition: Partition | None = None  # for a federation that is already split
    site_names: tuple[str, ...] = ()  # the owners of its parts
    broken: int = 0  # pictures that could not be read and were left out
    held_out: bool = False  # `test` holds training images that were kept back
    numbers: Tensor | None = None  # which of the whole set's training images these are; None: all
    users_own: bool = True  # not one of those that everybody has
    numbered_by: str = ""  # the hash of the split's file that the images were numbered for

    def __post_init__(self) -> None:
        for part in (self.train, self.test):
            if part.labels.device.type != "cpu":
                continue  # checked before they went there
            if not ((part.labels >= 0) & (part.labels < self.classes)).all():
                raise DatasetCorrupt(
                    f"{self.name}: labels must lie between 0 and {self.classes - 1}"
                )

    @classmethod
    def from_arrays(
        cls,
        images: Any,
        labels: Any = None,
        *,
        test: Any = 0.2,
        class_names: Sequence[str] = (),
        sites: Any = None,
        groups: Any = None,
        image_size: int | None = None,
    ) -> Dataset:
        """A data set from what is in memory, for `dcfl.run(dataset=...)`.

        Normalisation and augmentation follow from the images.

        Args:
            images: Square images [n, size, size], [n, size, size, channels] or
                [n, channels, size, size], uint8 or floats in 0 to 1, or feature vectors [n, d]: a
                NumPy array, a tensor, or a list of them. Or a list of PIL's pictures, or a Hugging
                Face data set with columns for image and label.
            labels: A number or a class name for each image; of a Hugging Face data set, the name
                of the column.
            test: The share of each class to test on, or the test images themselves: a pair of
                images and labels, or another Hugging Face data set.
            class_names: By label; by default those that the labels or the data set have.
            sites: The name of the owner of each image. Without it `data.clients` and
                `data.partition` split them.
            groups: The patient, say, of each image; those of one patient stay together in every
                split.
            image_size: Resize PIL's pictures to squares of so many pixels.

        Returns:
            The data set.

        Raises:
            DatasetCorrupt: The arrays do not fit together, or are no images and labels.

        Example:
            >>> import dcfl, numpy as np
            >>> images = np.random.default_rng(0).integers(0, 256, (500, 16, 16, 3), np.uint8)
            >>> data = dcfl.Dataset.from_arrays(images, ["cat", "dog"] * 250, test=0.2)
            >>> len(data.train), len(data.test), data.class_names
            (400, 100, ('cat', 'dog'))
            >>> result = dcfl.run(dataset=data, federation={"rounds": 1})
            >>> result.summary.clients
            8
        """
        from dcfl.data.readers.own_arrays import dataset_from

        return dataset_from(images, labels, test, class_names, sites, groups, image_size)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def vectors(self) -> bool:
        return self.train.vectors

    @property
    def channels(self) -> int:
        """How many numbers a pixel has; of a feature vector, its length."""
        return self.train.pixels.shape[-1]

    @property
    def size(self) -> int:
        """The height in pixels; models adapt their first stride to it. 1 for feature vectors."""
        return 1 if self.vectors else self.train.pixels.shape[1]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all pixels and labels: about a fifth of a second for CIFAR-10, where the
        processor has instructions for SHA-256."""
        digest = hashlib.sha256(f"{self.class_names} {self.preparation}".encode())
        for part in (self.train, self.test):
            digest.update(f"{tuple(part.pixels.shape)}".encode())
            for tensor in (part.labels, part.pixels):
                digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def holding_out(self, share: float, seed: int) -> Dataset:
        """A random share of the training images in place of the test images."""
        if self.partition is not None:
            raise ConfigError("data.holdout: the data comes as sites, which have their own split")
        generator = generator_for(seed, 0, 0, "holdout")
        wanted = round(share * len(self.train))
        if self.train.groups is None:
            shuffled = torch.randperm(len(self.train), generator=generator)
            held_out, remaining = shuffled.tensor_split([wanted])
        else:
            held_out, remaining = _by_groups(self.train.groups, wanted, generator)
        if not (len(held_out) and len(remaining)):
            whole = " in whole groups (data.group)" if self.train.groups is not None else ""
            raise ConfigError(
                f"data.holdout = {share:g} of {len(self.train)} images{whole} is "
                f"{'all' if len(held_out) else 'none'} of them"
            )
        kept_back = self.train[held_out.sort()[0]]
        return replace(self._training_on(remaining.sort()[0]), test=kept_back, held_out=True)

    @property
    def group_count(self) -> int | None:
        """How many groups the images come in, to train on and to test on; None: each is alone."""
        numbers = [part.groups for part in (self.train, self.test) if part.groups is not None]
        return len(np.unique(torch.cat(numbers).cpu().numpy())) if numbers else None

    def ungrouped(self) -> Dataset:
        """The same images, each of them alone."""
        train, test = (replace(part, groups=None) for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    def with_classes(self, count: int) -> Dataset:
        """The images of the first so many classes."""
        if count > self.classes:
            raise ConfigError(f"data.classes = {count}: {self.name} has {self.classes}")
        if self.partition is not None:
            raise ConfigError("data.classes: the data comes as sites, which have their own split")
        part = self._training_on((self.train.labels < count).nonzero().flatten())
        test = self.test[self.test.labels < count]
        return replace(part, test=test, class_names=self.class_names[:count])

    def trained_on(self, count: int) -> Dataset:
        """At most so many of the training images."""
        if self.partition is not None:
            raise ConfigError("data.train_images: the data comes as sites; take smaller folders")
        if count >= len(self.train):
            return self
        return self._training_on(self.train.sampled(count))

    def _training_on(self, rows: Tensor) -> Dataset:
        """These training images, which keep their numbers."""
        numbers = rows if self.numbers is None else self.numbers[rows]
        return replace(self, train=self.train[rows], numbers=numbers)

    def scored_on(self, count: int) -> Dataset:
        """At most so many of the test images."""
        return replace(self, test=self.test.sample(count))

    def augmented_by(self, augmentation: Augmentation) -> Dataset:
        return replace(self, preparation=replace(self.preparation, augmentation=augmentation))


def _by_groups(groups: Tensor, wanted: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of whole groups, in random order, as near to `wanted` as they come; and the others."""
    _, of_row, sizes = np.unique(groups.numpy(), return_inverse=True, return_counts=True)
    order = torch.randperm(len(sizes), generator=generator).numpy()
    reached = np.cumsum(sizes[order])
    count = int(np.abs(reached - wanted).argmin()) + 1 if wanted else 0
    held = np.isin(of_row, order[: min(count, len(sizes) - 1)])  # some must remain
    return torch.from_numpy(np.flatnonzero(held)), torch.from_numpy(np.flatnonzero(~held))
