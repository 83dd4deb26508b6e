"""Data sets by name: where each comes from, how it is read, and how its images become inputs.

A new data set is an entry of `PUBLIC`, and a reader in `dcfl/data/readers`.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.data.augment import Augmentation, Preparation, measured, usual_augmentation
from dcfl.data.cache import cached
from dcfl.data.datasets import Dataset, Images, short_name
from dcfl.data.readers.arrays import Arrays, Pixels
from dcfl.data.readers.cifar import (
    CIFAR10_PYTHON,
    CIFAR100_PYTHON,
    cifar_files,
    read_cifar,
    verify_cifar,
)
from dcfl.data.readers.folders import folder_files, folder_names, read_folder, read_sites
from dcfl.data.readers.npz import read_npz
from dcfl.data.readers.pictures import Reading
from dcfl.data.readers.tiny_imagenet import TINY, read_tiny_imagenet, tiny_imagenet_files
from dcfl.data.settings import DataSettings
from dcfl.data.splits.grouping import NONE, SUBFOLDER, table_sha256
from dcfl.data.splits.partition import Partition
from dcfl.errors import ClassNotAgreed, ConfigError, DatasetCorrupt, DatasetMissing
from dcfl.system.wording import some


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str
    folder: str  # the one folder in the archive, and its name on disk
    required: tuple[str, ...]  # in that folder, for the data set to count as complete
    max_download: int = 300_000_000  # bytes

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class PublicData:
    """What is known of a data set by its name. Functions are given the folder of `data.path`."""

    preparation: Preparation
    read: Callable[[Path], Arrays]
    files: Callable[[Path], list[Path]] = lambda root: []  # DatasetMissing if one is not there
    archive: Archive | None = None  # None: it comes with dcfl
    # What is unusual about the files' checksums; DatasetCorrupt if their content is not sound.
    verify: Callable[[Path], list[str]] | None = None


def _read_digits(_: Path) -> Arrays:
    """1,797 handwritten digits of 8x8 pixels (UCI; see benchmarks/make_digits.py).

    Every fifth image of each class is for testing: 1,442 to train on and 355 to test on.
    """
    file = resources.files("dcfl.data") / "digits.npz"
    if hashlib.sha256(file.read_bytes()).hexdigest() != DIGITS_SHA256:
        raise DatasetCorrupt("the built-in digits.npz is damaged: install dcfl again")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        levels, labels = stored["images"], stored["labels"].astype(np.int64)
    pixels = (levels * 15.9375).round().astype(np.uint8)[..., None]  # 0 to 16 becomes 0 to 255
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[4::5]] = True
    return Arrays(pixels[~test], labels[~test], pixels[test], labels[test], tuple("0123456789"))


DIGITS_SHA256 = "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e"
# Normalisation of CIFAR and Tiny-ImageNet as in FedRCL's code; crop and flip as in most of the
# published ones.
PUBLIC = {
    "digits": PublicData(
        # A mirrored digit is a different sign, so digits are shifted but not flipped.
        Preparation(mean=(0.3053,), std=(0.3762,), augmentation=Augmentation(crop=1)),
        _read_digits,
    ),
    "cifar10": PublicData(
        # The second is the mean of the images' own deviations, which FedRCL's code divides by; the
        # deviation of all pixels is (0.2470, 0.2435, 0.2616).
        Preparation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), Augmentation(4, True)),
        partial(read_cifar, "cifar10"),
        partial(cifar_files, "cifar10"),
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            CIFAR10_PYTHON.folder,
            CIFAR10_PYTHON.files,
        ),
        partial(verify_cifar, "cifar10"),
    ),
    "cifar100": PublicData(
        Preparation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), Augmentation(4, True)),
        partial(read_cifar, "cifar100"),
        partial(cifar_files, "cifar100"),
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            CIFAR100_PYTHON.folder,
            CIFAR100_PYTHON.files,
        ),
        partial(verify_cifar, "cifar100"),
    ),
    "tiny-imagenet": PublicData(
        Preparation((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), Augmentation(8, True)),
        read_tiny_imagenet,
        tiny_imagenet_files,
        Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            TINY,
            ("wnids.txt", "train", "val"),
        ),
    ),
}
OWN = ("folder", "npz", "sites")


def is_named(name: str) -> bool:
    return name in PUBLIC or name == "remote" or name.partition(":")[0] in OWN


def load_dataset(settings: DataSettings, whole: Dataset | None = None) -> Dataset:
    """The data set that the settings name; decoded once, then read from a memory-mapped cache.
    `whole`: the same, if it is in memory."""
    whole = _load(settings) if whole is None else whole
    dataset = settings.fitted(_normalised(whole, settings))
    if settings.classes:
        dataset = dataset.with_classes(settings.classes)
    seed = settings.split_seed
    if settings.holdout:
        dataset = dataset.holding_out(settings.holdout, seed)
    elif settings.test_skip:
        dataset = dataset.without_test_images(settings.test_skip)
    if settings.train_images:  # of those that are not kept back
        dataset = dataset.trained_on(settings.train_images, seed)
    return dataset.scored_on(settings.test_images, seed) if settings.test_images else dataset


def _load(settings: DataSettings) -> Dataset:
    name, colon, where = settings.dataset.partition(":")
    _check_agreed(settings, name)
    if settings.dataset == "remote":
        return _remote(settings)
    if public := PUBLIC.get(settings.dataset):
        return _public(settings.dataset, public, Path(settings.path))
    if (table := Path(settings.dataset)).suffix in (".csv", ".parquet"):
        made = f"{table.stem}.npz"
        raise ConfigError(
            f"data.dataset: {settings.dataset} is a table: in Python, dcfl.Dataset.of("
            f"{settings.dataset!r}, labels='COLUMN').save({made!r}); then data.dataset=npz:{made}"
        )
    if not (colon and where and name in OWN):
        raise ConfigError(
            f"data.dataset: unknown data set {settings.dataset!r}; known: "
            f"{', '.join(PUBLIC)}, {', '.join(f'{kind}:PATH' for kind in OWN)}, remote"
        )
    arrays = _users_own(name, Path(os.path.expanduser(where)), settings)
    preparation = measured(arrays.train_pixels, flip=name != "npz")
    if name == "npz" and len(arrays.mean):
        mean, std = tuple(arrays.mean.tolist()), tuple(arrays.std.tolist())
        preparation = replace(preparation, mean=mean, std=std)
    return dataset_of(short_name(settings.dataset), arrays, preparation)


def _public(name: str, public: PublicData, root: Path) -> Dataset:
    def read() -> Arrays:
        return replace(public.read(root), notes=tuple(public.verify(root) if public.verify else ()))

    files = public.files(root)
    arrays = cached(name, files, {}, read) if files else read()
    return replace(dataset_of(name, arrays, public.preparation), users_own=False)


def load_own_site(
    settings: DataSettings, data: str, site: str, client: int
) -> tuple[Dataset, Partition]:
    """At a site: its own pictures or vectors, as those of one client; the other clients' are
    elsewhere.

    `data` is `folder:PATH` or `npz:PATH`, or `sites:PATH` with `site` the name of its folder.
    """
    kind, _, _ = data.partition(":")
    if kind not in OWN:
        raise ConfigError(
            f"this node's own data must be folder:PATH, sites:PATH or npz:PATH, not {data!r}"
        )
    # What no server asks, because it has no images: their number would decide the answer.
    agreed = load_dataset(replace(settings, group=SUBFOLDER))
    own = replace(settings, dataset=data, holdout=0.0, features=0)
    dataset = _own_file(own, agreed) if kind == "npz" else load_dataset(own)
    if dataset.shape != agreed.shape or dataset.vectors != agreed.vectors:
        raise ConfigError(
            f"{data} has inputs of {list(dataset.shape)}, and the run is of {list(agreed.shape)}: "
            f"agree on data.features, or on data.image_size for pictures"
        )
    dataset = _normalised(replace(dataset, preparation=_unseen(settings)), settings)
    if dataset.partition is None:
        whole = Partition.of_parts([np.arange(len(dataset.train))])
        dataset = replace(dataset, partition=whole, site_names=(site,))
    if site not in dataset.site_names:
        raise ConfigError(f"{data} has no site {site!r}: {', '.join(dataset.site_names)}")
    if settings.holdout:
        dataset = dataset.with_sites_holding_back(settings.holdout)
    assert dataset.partition is not None
    number = dataset.site_names.index(site)
    indices = dataset.partition.of(number)
    dataset = replace(dataset, test=replace(dataset.test.of(number), owners=None))
    offsets = np.zeros(settings.population + 1, dtype=np.int64)
    offsets[client + 1 :] = len(indices)
    return dataset, Partition(offsets, indices[: offsets[-1]])


def _own_file(settings: DataSettings, agreed: Dataset) -> Dataset:
    """With the classes in the order that was agreed on. Its own normalisation plays no part: it is
    another one at each site."""
    plain = replace(settings, class_names=(), window=(), mean=(), std=())
    dataset, names = load_dataset(plain), agreed.class_names
    if others := [name for name in dataset.class_names if name not in names]:
        raise ClassNotAgreed(f"{dataset.name}: {some(others)}: not among the classes agreed on")
    if settings.group == NONE:
        dataset = dataset.ungrouped()
    labels = torch.tensor([names.index(name) for name in dataset.class_names])
    train, test = (replace(p, labels=labels[p.labels]) for p in (dataset.train, dataset.test))
    return replace(dataset, train=train, test=test, class_names=names)


def _remote(settings: DataSettings) -> Dataset:
    """At the server: what was agreed about images that are elsewhere."""
    side, names = settings.image_size, settings.class_names
    vectors, pictures = np.zeros((0, settings.features), np.float32), (0, side, side, 3)
    inputs = vectors if settings.features else np.zeros(pictures, np.uint8)
    none = _images(inputs, np.zeros(0, np.int64))
    no_samples = Partition(np.zeros(settings.population + 1, np.int64), np.zeros(0, np.int32))
    return Dataset("remote", none, none, names, _unseen(settings), no_samples)


def _unseen(settings: DataSettings) -> Preparation:
    """For images that nobody can measure together: the same at all sites."""
    if count := settings.features:
        return Preparation((0.0,) * count, (1.0,) * count)
    return Preparation((0.5,) * 3, (0.25,) * 3, usual_augmentation(settings.image_size, True))


def _check_agreed(settings: DataSettings, kind: str) -> None:
    if settings.dataset == "remote" and settings.group != SUBFOLDER:
        raise ConfigError("data.group is each site's own setting: `group` in its node config")
    if settings.dataset == "remote" and not settings.class_names:
        raise ConfigError(
            'data.dataset = "remote" needs data.class_names: all sites must agree on the classes'
        )
    given = {
        "class_names": bool(settings.class_names),
        "window": bool(settings.window),
        "group": settings.group not in (SUBFOLDER, NONE),
    }
    for key, is_given in given.items():
        if is_given and kind not in ("folder", "sites", "remote"):
            raise ConfigError(f"data.{key} is for pictures of your own, not {kind}")


def _normalised(dataset: Dataset, settings: DataSettings) -> Dataset:
    mean, std = settings.mean, settings.std
    if not mean:
        return dataset
    if not dataset.preparation.mean:
        raise ConfigError(
            f"data.mean and data.std: the model gets the inputs of {dataset.name} as they are"
        )
    if dataset.vectors and len(mean) == 1:  # for all of their numbers
        mean, std = mean * dataset.channels, std * dataset.channels
    if len(mean) != dataset.channels:
        raise ConfigError(
            f"data.mean and data.std must have one number for each channel: {dataset.name} has "
            f"{dataset.channels}, not {len(settings.mean)}"
        )
    in_range = all(0 <= one <= 1 for one in mean) and all(one <= 1 for one in std)
    if not (dataset.vectors or in_range):
        raise ConfigError("data.mean must lie in 0 to 1, and data.std above 0, up to 1: of images")
    preparation = replace(dataset.preparation, mean=mean, std=std)
    return replace(dataset, preparation=preparation)


def _users_own(kind: str, path: Path, settings: DataSettings) -> Arrays:
    if not path.exists():
        raise DatasetMissing(f"{path}: no such {'file' if kind == 'npz' else 'folder'}")
    if kind == "npz":
        return cached(kind, [path], {}, lambda: read_npz(path))
    reader = read_folder if kind == "folder" else read_sites

    def read() -> Arrays:
        notes: list[str] = []
        reading = replace(reading_of(settings), warn=notes.append)
        return replace(reader(path, reading), notes=tuple(notes))

    files = folder_files(path)  # first: it refuses a folder that is too large
    reading = {**vars(reading_of(settings)), "warn": None}
    how = {**reading, "folders": folder_names(path), "table": table_sha256(settings.group)}
    return cached(kind, files, how, read)


def reading_of(settings: DataSettings) -> Reading:
    return Reading(
        settings.image_size,
        settings.fit,
        settings.broken,
        class_names=settings.class_names,
        window=settings.window,
        group=settings.group,
    )


def dataset_of(name: str, arrays: Arrays, preparation: Preparation) -> Dataset:
    for note in arrays.notes:
        warnings.warn(note, stacklevel=2)
    partition = None
    if len(arrays.site_offsets):
        rows = np.arange(len(arrays.train_labels), dtype=np.int32)
        partition = Partition(arrays.site_offsets, rows)
    return Dataset(
        name,
        _images(arrays.train_pixels, arrays.train_labels, arrays.train_groups),
        _images(arrays.test_pixels, arrays.test_labels, arrays.test_groups, arrays.test_owners),
        arrays.class_names,
        preparation,
        partition,
        arrays.site_names,
        broken=arrays.broken,
    )


def _images(pixels: Pixels, labels: NDArray[np.int64], *numbers: NDArray[np.int64]) -> Images:
    """`numbers`: of groups, of owners; empty if there are none."""
    known = (torch.from_numpy(np.array(one)) if len(one) else None for one in numbers)
    return Images(torch.from_numpy(pixels), torch.from_numpy(np.array(labels)), *known)
