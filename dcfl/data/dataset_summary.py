"""What is in a data set, for a person who looks at it before training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.data.catalogue import PUBLIC
from dcfl.data.datasets import Dataset, Size
from dcfl.data.identical import Identical, identical_pictures
from dcfl.data.settings import DataSettings

MANY_CLIENTS = 300  # more are summed up; programs get all of them
PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(frozen=True, eq=False)
class Overview:
    counts: NDArray[np.int64]  # samples of each client and class

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.asarray(self.counts.sum(axis=1))

    @cached_property
    def held(self) -> NDArray[np.int64]:
        return np.asarray((self.counts > 0).sum(axis=1))

    @cached_property
    def largest_shares(self) -> NDArray[np.float64]:
        return np.asarray(self.counts.max(axis=1) / np.maximum(self.sizes, 1))

    @property
    def smallest(self) -> int:
        return int(self.sizes.argmin())

    @property
    def largest(self) -> int:
        return int(self.sizes.argmax())


@dataclass(frozen=True)
class DatasetSummary:
    dataset: str
    train: int  # images
    test: int
    smallest_test_share: float  # of a class's images, to test on
    largest_test_share: float
    size: Size  # pixels
    channels: int
    shape: tuple[int, ...]  # of one, as the model gets it
    vectors: bool  # feature vectors instead of images
    groups: int | None  # of images that stay together
    mixed_groups: int | None  # those among them with images of several classes
    class_names: tuple[str, ...]
    smallest_class: int  # training images
    largest_class: int
    sites: dict[str, int] | None  # images of each, if it came split
    lacking: dict[str, list[str]] | None  # classes that a site has no images of, by site
    identical: Identical  # pictures that are there more than once
    official: bool | None  # whether the checksums are, for data sets that have them

    @property
    def test_share(self) -> float:
        return self.test / max(self.train + self.test, 1)

    def as_json(self) -> dict[str, Any]:
        found = {**asdict(self), "identical": self.identical._asdict()}
        return {name: value for name, value in found.items() if value is not None}


def summarise_dataset(dataset: Dataset, settings: DataSettings) -> DatasetSummary:
    train, test = (
        torch.bincount(part.labels, minlength=dataset.classes)
        for part in (dataset.train, dataset.test)
    )
    shares = (test.double() / (train + test))[train + test > 0]
    split, public = dataset.partition, PUBLIC.get(dataset.name)
    verify = public.verify if public else None
    return DatasetSummary(
        dataset=dataset.name,
        train=len(dataset.train),
        test=len(dataset.test),
        smallest_test_share=float(shares.min()),
        largest_test_share=float(shares.max()),
        size=dataset.size,
        channels=dataset.channels,
        shape=dataset.shape,
        vectors=dataset.vectors,
        groups=dataset.group_count,
        mixed_groups=_mixed_groups(dataset),
        class_names=dataset.class_names,
        smallest_class=int(train.min()),
        largest_class=int(train.max()),
        sites=dict(zip(dataset.site_names, split.sizes.tolist(), strict=True)) if split else None,
        lacking=_lacking(dataset) if split else None,
        identical=identical_pictures(dataset),
        official=not verify(Path(settings.path)) if verify else None,
    )


def _mixed_groups(dataset: Dataset) -> int | None:
    pairs = [
        torch.stack([part.groups, part.labels])
        for part in (dataset.train, dataset.test)
        if part.groups is not None
    ]
    if not pairs:
        return None
    groups, _ = np.unique(torch.cat(pairs, dim=1).numpy(), axis=1)  # once for each of its classes
    return int((np.unique(groups, return_counts=True)[1] > 1).sum())


def _lacking(dataset: Dataset) -> dict[str, list[str]]:
    assert dataset.partition is not None
    counts = dataset.partition.counts(dataset.train.labels.numpy(), dataset.classes)
    lacking = {
        site: [name for name, count in zip(dataset.class_names, own, strict=True) if not count]
        for site, own in zip(dataset.site_names, counts, strict=True)
    }
    return {site: names for site, names in lacking.items() if names}
