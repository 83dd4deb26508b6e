"""Data sets by name: where each is read from, and how its images become inputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.data.augment import Augmentation, Preparation, measured, usual_augmentation
from dcfl.data.cache import cached
from dcfl.data.datasets import Dataset, Images, load_digits
from dcfl.data.readers.arrays import Arrays, Pixels
from dcfl.data.readers.cifar import (
    cifar10_files,
    cifar100_files,
    read_cifar10,
    read_cifar100,
    verify,
)
from dcfl.data.readers.folders import Reading, folder_files, folder_names, read_folder, read_sites
from dcfl.data.readers.npz import read_npz
from dcfl.data.readers.tiny_imagenet import read_tiny_imagenet, tiny_imagenet_files
from dcfl.data.settings import DataSettings
from dcfl.data.splits.grouping import NONE, SUBFOLDER, is_table, table_sha256
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DatasetMissing

# Over CIFAR-10's training images. The second is the mean of the images' own deviations, which
# FedRCL's code divides by; the deviation of all pixels is (0.2470, 0.2435, 0.2616).
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_MEAN_IMAGE_STD = (0.2023, 0.1994, 0.2010)

# Normalisation as in FedRCL's code; crop and flip as in most of the published ones.
PAPER: dict[str, tuple[Preparation, Callable[[Path], list[Path]], Callable[[Path], Arrays]]] = {
    "cifar10": (
        Preparation(CIFAR10_MEAN, CIFAR10_MEAN_IMAGE_STD, Augmentation(4, True)),
        cifar10_files,
        lambda root: _official(read_cifar10, root, "cifar10"),
    ),
    "cifar100": (
        Preparation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), Augmentation(4, True)),
        cifar100_files,
        lambda root: _official(read_cifar100, root, "cifar100"),
    ),
    "tiny-imagenet": (
        Preparation((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), Augmentation(8, True)),
        tiny_imagenet_files,
        read_tiny_imagenet,
    ),
}
OWN = ("folder", "npz", "sites")
NO_GROUPS = np.zeros(0, np.int64)


def load_dataset(settings: DataSettings) -> Dataset:
    """The data set that the settings name; decoded once, then read from a memory-mapped cache."""
    dataset = settings.fitted(_normalised(_load(settings), settings))
    if settings.classes:
        dataset = dataset.with_classes(settings.classes)
    if settings.holdout:
        dataset = dataset.holding_out(settings.holdout, settings.split_seed)
    if settings.train_images:  # of those that are not kept back
        dataset = dataset.trained_on(settings.train_images)
    return dataset.scored_on(settings.test_images) if settings.test_images else dataset


def _load(settings: DataSettings) -> Dataset:
    name, colon, where = settings.dataset.partition(":")
    _check_agreed(settings, name)
    if settings.dataset == "digits":
        return load_digits()
    if settings.dataset == "remote":
        return _remote(settings)
    if settings.dataset in PAPER:
        preparation, files, read = PAPER[settings.dataset]
        root = Path(settings.path)
        arrays = cached(settings.dataset, files(root), {}, lambda: read(root))
        return _dataset(settings.dataset, arrays, preparation)
    if not (colon and where and name in OWN):
        raise ConfigError(
            f"data.dataset: unknown data set {settings.dataset!r}; known: digits, "
            f"{', '.join(PAPER)}, {', '.join(f'{kind}:PATH' for kind in OWN)}, remote"
        )
    arrays = _users_own(name, Path(os.path.expanduser(where)), settings)
    return _dataset(settings.dataset, arrays, measured(arrays.train_pixels, flip=name != "npz"))


def load_own_site(
    settings: DataSettings, data: str, site: str, client: int
) -> tuple[Dataset, Partition]:
    """At a site: its own pictures, as those of one client; the other clients' are elsewhere.

    `data` is `folder:PATH`, or `sites:PATH` with `site` the name of its folder.
    """
    kind, _, _ = data.partition(":")
    _require_no_table(settings)
    if kind not in ("folder", "sites"):
        raise ConfigError(f"this node's own data must be folder:PATH or sites:PATH, not {data!r}")
    dataset = load_dataset(replace(settings, dataset=data))
    dataset = _normalised(replace(dataset, preparation=_unseen(settings)), settings)
    indices = np.arange(len(dataset.train), dtype=np.int32)
    if dataset.partition is not None:
        if site not in dataset.site_names:
            raise ConfigError(f"{data} has no site {site!r}: {', '.join(dataset.site_names)}")
        indices = dataset.partition.of(dataset.site_names.index(site))
    parts = [indices if number == client else indices[:0] for number in range(settings.population)]
    return dataset, Partition.of_parts(parts)


def _remote(settings: DataSettings) -> Dataset:
    """At the server: what was agreed about images that are elsewhere."""
    side = settings.image_size
    no_images = _images(np.zeros((0, side, side, 3), np.uint8), np.zeros(0, np.int64))
    no_samples = Partition.of_parts([np.zeros(0, np.int32)] * settings.population)
    return Dataset(
        "remote", no_images, no_images, settings.class_names, _unseen(settings), no_samples
    )


def _unseen(settings: DataSettings) -> Preparation:
    """For images that nobody can measure together: the same at all sites."""
    return Preparation((0.5,) * 3, (0.25,) * 3, usual_augmentation(settings.image_size, True))


def _require_no_table(settings: DataSettings) -> None:
    """A run must not name files of a site."""
    if is_table(settings.group):
        raise ConfigError(
            'data.group: with data.dataset = "remote" no table of a site is read; give pictures '
            "subfolders, or a regular expression that fits their names at every site"
        )


def _check_agreed(settings: DataSettings, kind: str) -> None:
    if settings.dataset == "remote":
        _require_no_table(settings)
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
    """With the settings' mean and deviation, if they give them."""
    mean, std = settings.mean, settings.std
    if not mean:
        return dataset
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
    """The user's own images."""
    if not path.exists():
        raise DatasetMissing(f"{path}: no such {'file' if kind == 'npz' else 'folder'}")
    if kind == "npz":
        return cached(kind, [path], {}, lambda: read_npz(path))
    reader = read_folder if kind == "folder" else read_sites

    def read() -> Arrays:
        notes: list[str] = []
        reading = replace(reading_of(settings), warn=notes.append)
        return replace(reader(path, reading), notes=tuple(notes))

    decoding: list[Any] = [settings.image_size, settings.fit, settings.broken, folder_names(path)]
    decoding.append({"group": settings.group, "table": table_sha256(settings.group)})
    if settings.class_names:
        decoding.append(settings.class_names)
    if settings.window:
        decoding.append({"window": settings.window})
    return cached(kind, folder_files(path), {"how": decoding}, read)


def reading_of(settings: DataSettings) -> Reading:
    """How the settings want pictures of the user's own to be read."""
    return Reading(
        settings.image_size,
        settings.fit,
        settings.broken,
        class_names=settings.class_names,
        window=settings.window,
        group=settings.group,
    )


def _official(read: Callable[[Path], Arrays], root: Path, name: str) -> Arrays:
    """With a note where the files are sound but not the official ones."""
    return replace(read(root), notes=tuple(verify(root, name)))


def _dataset(name: str, arrays: Arrays, preparation: Preparation) -> Dataset:
    for note in arrays.notes:
        warnings.warn(note, stacklevel=2)
    partition = None
    if arrays.site_names:
        rows = np.arange(len(arrays.train_labels), dtype=np.int32)
        partition = Partition(arrays.site_offsets, rows)
    return Dataset(
        name,
        _images(arrays.train_pixels, arrays.train_labels, arrays.train_groups),
        _images(arrays.test_pixels, arrays.test_labels, arrays.test_groups),
        arrays.class_names,
        preparation,
        partition,
        arrays.site_names,
        broken=arrays.broken,
    )


def _images(
    pixels: Pixels, labels: NDArray[np.int64], groups: NDArray[np.int64] = NO_GROUPS
) -> Images:
    known = torch.from_numpy(np.array(groups)) if len(groups) else None
    return Images(torch.from_numpy(pixels), torch.from_numpy(np.array(labels)), known)
