"""A split of one's own: who owns which image, as a file says it.

Numbers count the training images of the whole data set from 0: before `data.classes`,
`data.holdout` and `data.train_images` take a part of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.data.datasets import Dataset, Images
from dcfl.data.partition import Partition
from dcfl.errors import ConfigError, PartitionError
from dcfl.system.printable import printable

Numbers = NDArray[np.int64]  # of images
LONGEST_NAME = 40  # characters of a client's name in a message


@dataclass(frozen=True)
class MadeFor:
    """The data set whose images are numbered."""

    dataset: str
    images: int
    labels_sha256: str  # tells another data set, or another order of its images

    @classmethod
    def of(cls, name: str, images: Images) -> MadeFor:
        labels = images.labels.cpu().numpy().astype("<i8")
        return cls(name, len(labels), hashlib.sha256(labels.tobytes()).hexdigest())


@dataclass(frozen=True, eq=False)
class OwnSplit:
    """What a file says, whatever its form."""

    path: Path
    parts: tuple[Numbers, ...]  # of the images of each client
    names: tuple[str, ...] = ()  # of the clients; none: they are numbered
    # Of the images that are scored on. With them, numbers go on from the last training image to the
    # test images, as FL-bench counts.
    test: Numbers | None = None
    made_for: MadeFor | None = None

    @cached_property
    def sha256(self) -> str:
        """Of who owns what; neither of the file's form nor of its name."""
        digest = hashlib.sha256()
        for numbers in (*self.parts, () if self.test is None else self.test):
            digest.update(len(numbers).to_bytes(8, "little"))
            digest.update(np.asarray(numbers, "<i8").tobytes())
        return digest.hexdigest()

    def fitted(self, dataset: Dataset) -> Dataset:
        """The whole data set with its images numbered as the file does; refuses what does not fit
        in one line."""
        if dataset.numbered_by == self.sha256:
            return dataset
        if dataset.numbers is not None:
            raise ConfigError(
                f"data.partition = {self}: a part of the data was taken already, and its numbers "
                f"are lost; leave that to data.classes, data.holdout and data.train_images"
            )
        images = dataset.train if self.test is None else _joined(dataset.train, dataset.test)
        self._require_same_data(dataset.name, images)
        self._require_numbers(dataset.name, len(images))
        return replace(
            dataset,
            train=images,
            test=dataset.test if self.test is None else images[torch.from_numpy(self.test)],
            numbers=torch.arange(len(images)),
            numbered_by=self.sha256,
        )

    def over(self, dataset: Dataset, min_size: int) -> Partition:
        """The split of a data set that was `fitted` before a part of it was taken."""
        if dataset.numbered_by != self.sha256 or dataset.numbers is None:
            raise ConfigError(f"data.partition = {self}: the data set was not read for this file")
        numbers = dataset.numbers.numpy()
        last = max(int(part.max()) for part in (*self.parts, numbers) if len(part))
        rows = np.full(last + 1, -1, dtype=np.int64)
        rows[numbers] = np.arange(len(numbers))
        parts = [rows[part][rows[part] >= 0] for part in self.parts]
        for client, part in enumerate(parts):
            if len(part) < min_size:
                left = " left" if len(part) < len(self.parts[client]) else ""
                raise PartitionError(
                    f"{self.path}: {self.name(client)} has {len(part)} images{left}, and "
                    f"data.min_size is {min_size}"
                    + (": set it lower" if len(part) > 1 else ": leave the client out")
                )
        return Partition.of_parts(parts)

    def name(self, client: int) -> str:
        known = f" {printable(self.names[client], LONGEST_NAME)}" if self.names else ""
        return f"client{known or f' {client}'}"

    def __str__(self) -> str:
        return f"file:{self.path}"

    def _require_same_data(self, name: str, images: Images) -> None:
        made_for = self.made_for
        if made_for is None:
            return
        if made_for.images != len(images):
            raise PartitionError(
                f"{self.path} is for {printable(made_for.dataset)} with {made_for.images:,} "
                f"images, and {name} has {len(images):,}"
            )
        if made_for.labels_sha256 != MadeFor.of(name, images).labels_sha256:
            raise PartitionError(
                f"{self.path} is for {printable(made_for.dataset)}, and the images of {name} are "
                f"others, or in another order"
            )

    def _require_numbers(self, name: str, count: int) -> None:
        owners = {self.name(client): part for client, part in enumerate(self.parts)}
        if self.test is not None:
            owners["the test set"] = self.test
        for who, numbers in owners.items():
            if not len(numbers):
                raise PartitionError(f"{self.path}: {who} has no images")
            if numbers.min() < 0:
                raise PartitionError(
                    f"{self.path}: {who} has image {numbers.min()}, and numbers begin at 0"
                )
            if numbers.max() >= count:
                raise PartitionError(
                    f"{self.path}: {who} has image {numbers.max()}, and {name} has {count:,} "
                    f"{'training images' if self.test is None else 'images'}, from 0 on: is the "
                    f"file for another data set?"
                )
        self._require_one_owner(np.concatenate([*owners.values()]))

    def _require_one_owner(self, numbers: Numbers) -> None:
        counts = np.bincount(numbers)
        if counts.max() <= 1:
            return
        image = int(counts.argmax())
        owners = [n for n, part in enumerate(self.parts) for _ in range((part == image).sum())]
        if len(owners) == 1:
            what = f"belongs to {self.name(owners[0])} and is scored on"
        elif not owners:
            what = "is among the test images twice"
        elif owners[0] == owners[1]:
            what = f"belongs to {self.name(owners[0])} twice"
        else:
            what = f"belongs to {self.name(owners[0])} and to {self.name(owners[1])}"
        raise PartitionError(f"{self.path}: image {image} {what}")


def _joined(train: Images, test: Images) -> Images:
    pixels = torch.cat([train.pixels, test.pixels])
    labels = torch.cat([train.labels, test.labels])
    groups = None
    if train.groups is not None and test.groups is not None:
        groups = torch.cat([train.groups, test.groups])
    return Images(pixels, labels, groups)


def own_split_of(
    partition: Partition, dataset: Dataset, whole: Dataset, path: Path, read: OwnSplit | None
) -> OwnSplit:
    """What would be written for this split of a data set, of which `whole` has all images. `read`:
    the file that it came from."""
    numbers = np.arange(len(dataset.train)) if dataset.numbers is None else dataset.numbers.numpy()
    return OwnSplit(
        path,
        tuple(numbers[partition.of(client)] for client in range(len(partition))),
        dataset.site_names or (read.names if read else ()),
        read.test if read else None,
        MadeFor.of(dataset.name, whole.train),
    )
