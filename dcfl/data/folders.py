"""The user's own pictures: a folder per class, or a folder per site with class folders inside."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dcfl.data.arrays import Arrays
from dcfl.data.grey_levels import Range
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
    subfolders,
)
from dcfl.errors import ClassNotAgreed, DatasetCorrupt, require
from dcfl.system.printable import printable

TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation")


@dataclass(frozen=True)
class Reading:
    """How pictures are read. `class_names` may be agreed beforehand: a folder may then lack some of
    them but have no others."""

    size: int
    fit: Fit = "resize"
    broken: Broken = "refuse"
    test_share: int = 5  # every how many-th image is for testing, where there is no test set
    warn: Warn = warnings.warn
    class_names: Sequence[str] = ()
    window: Sequence[float] = ()  # centre and width; none: what suits the file

    def __post_init__(self) -> None:
        require(self.size >= 1, f"the size of the images must be at least 1 pixel, not {self.size}")
        require(
            self.fit in get_args(Fit),
            f"images can be fitted by {', '.join(get_args(Fit))}, not {self.fit!r}",
        )
        require(
            self.broken in get_args(Broken), f"broken images: refuse or skip, not {self.broken!r}"
        )
        require(
            self.test_share >= 2,
            f"every how many-th image is for testing: 2 or more, not {self.test_share}",
        )

    def decoding(self, root: Path) -> Decoding:
        window = Range.around(*self.window) if self.window else None
        how = (self.size, self.fit, self.broken, self.test_share, self.warn)
        return Decoding(root, *how, window=window)


def read_folder(folder: Path, reading: Reading) -> Arrays:
    """Class folders, or `train` and `test` (or `val`) with class folders in them."""
    require_folder(folder)
    train, test = _parts(folder)
    names = list(reading.class_names) or _class_folders(train)
    labels = {name: label for label, name in enumerate(names)}
    pictures = _pictures(train, labels, part="either" if test is None else "train")
    if not reading.class_names:
        require_every_class(names, pictures, train)
    if test is not None:
        pictures += _pictures(test, labels, part="test")
    loaded = load(pictures, reading.decoding(folder))
    if not reading.class_names:
        require_every_class(names, loaded.train, train)
    if len(loaded.train) < 2:
        raise DatasetCorrupt(f"{printable(folder)}: fewer than 2 images to train on")
    return arrays_of(loaded, names, test or folder)


def read_sites(folder: Path, reading: Reading) -> Arrays:
    """One folder per client with class folders in it, or with `train` and `test` of its own.

    A folder `test` next to the sites is the test set for all of them.
    """
    require_folder(folder)
    sites, test = _site_folders(folder)
    parts = [_parts(site) for site in sites]
    names = list(reading.class_names) or sorted(
        {name for train, _ in parts for name in subfolders(train)}
    )
    require_two(names, folder)
    labels = {name: label for label, name in enumerate(names)}
    pictures = []
    for number, (train, own_test) in enumerate(parts):
        apart = test is not None or own_test is not None
        pictures += _pictures(train, labels, "train" if apart else "either", number)
        pictures += _pictures(own_test, labels, "test", number) if own_test else []
    if not reading.class_names:
        require_every_class(names, pictures, folder)
    if test is not None:
        pictures += _pictures(test, labels, part="test")
    loaded = load(pictures, reading.decoding(folder))
    if not reading.class_names:
        require_every_class(names, loaded.train, folder)
    offsets = _site_offsets(loaded.train, sites)
    site_names = tuple(printable(site.name) for site in sites)
    return arrays_of(loaded, names, test or folder, site_names, offsets)


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """The folders of each class: the one to train on, and the one to test on if there is one."""
    require_folder(folder)
    found: dict[str, list[Path]] = {}
    for part in filter(None, _parts(folder)):
        for name in subfolders(part):
            found.setdefault(name, []).append(part / name)
    return found


def read_to_score(folder: Path, reading: Reading) -> Arrays:
    """Class folders to score a trained model on: those in `test` (or `val`) if there is a `train`
    beside it, else all pictures. They are the test images, and there are none to train on."""
    require_folder(folder)
    train, test = _parts(folder)
    names = subfolders(test or train)
    if not names:
        raise DatasetCorrupt(f"{printable(test or train)}: no class folders in it")
    labels = {name: label for label, name in enumerate(names)}
    pictures = _pictures(test or train, labels, part="test")
    if not pictures:
        raise DatasetCorrupt(f"{printable(test or train)}: no picture in its class folders")
    return arrays_of(load(pictures, reading.decoding(folder)), names, test or folder)


def site_folders(folder: Path) -> tuple[list[Path], Path | None]:
    """The folders of the sites, and the test set for all of them if there is one."""
    require_folder(folder)
    return _site_folders(folder)


def folder_files(folder: Path) -> list[Path]:
    """Every picture below the folder, sorted: all that `read_folder` or `read_sites` may read."""
    require_folder(folder)
    return sorted(images(folder))


def folder_names(folder: Path) -> list[str]:
    """Every folder below this one: an empty class or site is part of what a data set is."""
    below = (Path(here, name) for here, names, _ in os.walk(folder) for name in names)
    return sorted(os.path.relpath(path, folder) for path in below)


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """The folder with the class folders for training, and the one for testing if there is one."""
    # "train" may also be a class next to "car" and "plane": it counts only with folders in it.
    holding = {
        name.lower(): folder / name for name in subfolders(folder) if subfolders(folder / name)
    }
    train = next((holding[name] for name in TRAIN if name in holding), None)
    test = next((holding[name] for name in TEST if name in holding), None)
    if train is not None and (test is not None or len(subfolders(folder)) == 1):
        return train, test
    inner = [frozenset(subfolders(path)) for path in holding.values()]
    if len(inner) > 1 and len(inner) == len(subfolders(folder)) and len(set(inner)) == 1:
        raise DatasetCorrupt(
            f"{printable(folder)}: {', '.join(sorted(holding))} hold the same folders and look "
            f"like parts, not classes: call them train and test, or use sites:{printable(folder)}"
        )
    return folder, None


def _site_folders(folder: Path) -> tuple[list[Path], Path | None]:
    names = subfolders(folder)
    for name in names:
        if not subfolders(folder / name):
            raise DatasetCorrupt(
                f"{printable(folder / name)}: no class folders in it; "
                f"sites are stored as SITE/CLASS/image"
            )
    test = next((folder / name for name in names if name.lower() == "test"), None)
    sites = [folder / name for name in names if folder / name != test]
    if not sites:
        raise DatasetCorrupt(f"{printable(folder)}: no site folders in it")
    return sites, test


def _site_offsets(train: Sequence[Picture], sites: Sequence[Path]) -> NDArray[np.int64]:
    counts = Counter(picture.site for picture in train)
    for number, site in enumerate(sites):
        if counts[number] < 2:
            raise DatasetCorrupt(
                f"{printable(site)}: a site needs at least 2 images to train on, "
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
            raise ClassNotAgreed(
                f"{printable(folder / name)}: no images of this class to train on, or not one of "
                f"the agreed data.class_names"
            )
        paths = sorted(images(folder / name))
        pictures += [Picture(site, labels[name], part, path) for path in paths]
    return pictures
