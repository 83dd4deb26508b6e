"""One's own pictures: a folder per class, or a folder per site with class folders inside."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dcfl.data.arrays import Arrays
from dcfl.data.pictures import (
    Broken,
    Decoding,
    Fit,
    Picture,
    Warn,
    arrays_of,
    images,
    load,
    require_every_class,
    require_folder,
    require_two,
    shown,
    subfolders,
)
from dcfl.errors import DatasetCorrupt, require


def read_folder(
    folder: Path,
    size: int,
    fit: Fit = "resize",
    broken: Broken = "refuse",
    test_share: int = 5,
    warn: Warn = warnings.warn,
) -> Arrays:
    """Class folders, or `train` and `test` (or `val`) with class folders in them."""
    decoding = _decoding(folder, size, fit, broken, test_share, warn)
    train, test = _parts(folder)
    names = _class_folders(train)
    labels = {name: label for label, name in enumerate(names)}
    pictures = _pictures(train, labels, part="either" if test is None else "train")
    require_every_class(names, pictures, train)
    if test is not None:
        pictures += _pictures(test, labels, part="test")
    loaded = load(pictures, decoding)
    require_every_class(names, loaded.train, train)
    return arrays_of(loaded, names, test or folder)


def read_sites(
    folder: Path,
    size: int,
    fit: Fit = "resize",
    broken: Broken = "refuse",
    test_share: int = 5,
    warn: Warn = warnings.warn,
) -> Arrays:
    """One folder per client with class folders in it; `test` is the test set of all of them."""
    decoding = _decoding(folder, size, fit, broken, test_share, warn)
    sites, test = _site_folders(folder)
    names = sorted({name for site in sites for name in subfolders(site)})
    require_two(names, folder)
    labels = {name: label for label, name in enumerate(names)}
    part: Literal["train", "either"] = "either" if test is None else "train"
    pictures = [
        picture
        for number, site in enumerate(sites)
        for picture in _pictures(site, labels, part, number)
    ]
    require_every_class(names, pictures, folder)
    if test is not None:
        pictures += _pictures(test, labels, part="test")
    loaded = load(pictures, decoding)
    require_every_class(names, loaded.train, folder)
    offsets = _site_offsets(loaded.train, sites)
    site_names = tuple(shown(site.name) for site in sites)
    return arrays_of(loaded, names, test or folder, site_names, offsets)


def folder_files(folder: Path) -> list[Path]:
    """Every picture below the folder, sorted: all that `read_folder` or `read_sites` may read."""
    require_folder(folder)
    return sorted(images(folder))


def _decoding(
    root: Path, size: int, fit: Fit, broken: Broken, test_share: int, warn: Warn
) -> Decoding:
    require_folder(root)
    require(size >= 1, f"the size of the images must be at least 1 pixel, not {size}")
    require(fit in get_args(Fit), f"images can be fitted by resize or crop, not {fit!r}")
    require(broken in get_args(Broken), f"broken images: refuse or skip, not {broken!r}")
    require(test_share >= 2, f"every how many-th image is for testing: 2 or more, not {test_share}")
    return Decoding(root, size, fit, broken, test_share, warn)


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """Where the class folders for training are, and those for testing if they are set apart."""
    train = folder / "train"
    # "train" may also be the class next to "car" and "plane": it counts with folders in it.
    if train.is_dir() and subfolders(train):
        for test in (folder / "test", folder / "val"):
            if test.is_dir() and subfolders(test):
                return train, test
        if subfolders(folder) == ["train"]:
            return train, None
    return folder, None


def _site_folders(folder: Path) -> tuple[list[Path], Path | None]:
    names = subfolders(folder)
    for name in names:
        if not subfolders(folder / name):
            raise DatasetCorrupt(
                f"{shown(folder / name)}: no class folders in it; "
                f"sites are stored as SITE/CLASS/image"
            )
    sites = [folder / name for name in names if name != "test"]
    if not sites:
        raise DatasetCorrupt(f"{shown(folder)}: no site folders in it")
    return sites, folder / "test" if "test" in names else None


def _site_offsets(train: Sequence[Picture], sites: Sequence[Path]) -> NDArray[np.int64]:
    counts = Counter(picture.site for picture in train)
    for number, site in enumerate(sites):
        if counts[number] < 2:
            raise DatasetCorrupt(
                f"{shown(site)}: a site needs at least 2 images to train on, "
                f"this one has {counts[number]}"
            )
    return np.cumsum([0] + [counts[number] for number in range(len(sites))], dtype=np.int64)


def _class_folders(folder: Path) -> list[str]:
    names = subfolders(folder)
    require_two(names, folder)
    return names


def _pictures(
    folder: Path,
    labels: Mapping[str, int],
    part: Literal["train", "test", "either"],
    site: int = 0,
) -> list[Picture]:
    pictures = []
    for name in subfolders(folder):
        if name not in labels:
            raise DatasetCorrupt(f"{shown(folder / name)}: no images of this class to train on")
        found = sorted(images(folder / name))
        pictures += [Picture(site, labels[name], part, path) for path in found]
    return pictures
