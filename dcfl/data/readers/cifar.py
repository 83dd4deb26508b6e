"""CIFAR-10 and CIFAR-100 in their official Python layouts, read without trusting the files: no
pickle is run, and what comes out is checked for shapes, counts and label range."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcfl.data.readers.arrays import Arrays
from dcfl.data.readers.pickles import PickledArray, Refused, unpickled
from dcfl.errors import DatasetCorrupt, DatasetMissing

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]

ROW = 3 * 32 * 32  # the red, green and blue planes of one image
NAMES_BYTES = 50_000  # the official lists of class names have fewer than 2,000


@dataclass(frozen=True)
class Layout:
    dataset: str
    folder: str
    train: tuple[str, ...]
    test: str
    names: str  # the file with the class names
    classes: int
    train_rows: int  # in each file
    test_rows: int
    names_key: str  # in the pickles
    label_key: str
    checksums: tuple[str, ...]  # MD5 of the files in order, as published

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10_PYTHON = Layout(
    "cifar10", "cifar-10-batches-py", _BATCHES, "test_batch", "batches.meta", 10, 10_000, 10_000,
    names_key="label_names", label_key="labels",
    checksums=(
        "c99cafc152244af753f735de768cd75f",
        "d4bba439e000b95fd0a9bffe97cbabec",
        "54ebc095f3ab1f0389bbae665268c751",
        "634d18415352ddfa80567beed471001a",
        "482c414d41f54cd18b22e5b47cb7c3cb",
        "40351d587109b95175f43aff81a1287e",
        "5ff9c542aee3614f3951f8cda6e48888",
    ),
)  # fmt: skip
CIFAR100_PYTHON = Layout(
    "cifar100", "cifar-100-python", ("train",), "test", "meta", 100, 50_000, 10_000,
    names_key="fine_label_names", label_key="fine_labels",
    checksums=(
        "16019d7e3df5f24257cddd939b257f8d",
        "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "7973b15100ade9c7d40fb424638fde48",
    ),
)  # fmt: skip
LAYOUTS = {"cifar10": CIFAR10_PYTHON, "cifar100": CIFAR100_PYTHON}


def read_cifar(name: str, folder: Path) -> Arrays:
    """`folder` holds an official folder or is one; of cifar100, the 100 fine labels."""
    return _read(*_locate(name, folder))


def cifar_files(name: str, folder: Path) -> list[Path]:
    return _files(*_locate(name, folder))


def verify_cifar(name: str, folder: Path) -> list[str]:
    """Compare the files with the official checksums; returns warnings, or raises DatasetCorrupt.

    A file with another checksum is accepted if its content is sound: rows may be in another order.
    """
    place, layout = _locate(name, folder)
    unknown = []
    for path, known in zip(_files(place, layout), layout.checksums, strict=True):
        with _refusing(path, layout), path.open("rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
        unknown += [path.name] if digest.hexdigest() != known else []
    if not unknown:
        return []
    _read(place, layout)
    return [
        f"{name}: not the official checksum: {', '.join(unknown)} in {place}; "
        f"the content is sound and is used"
    ]


def _locate(name: str, folder: Path) -> tuple[Path, Layout]:
    layout = LAYOUTS[name]
    places = (folder / layout.folder, folder)
    place = min(places, key=lambda place: len(_absent(place, layout)))
    if absent := _absent(place, layout):
        what, where = ", ".join(absent), place
        if len(absent) == len(layout.files):
            what, where = f"{layout.folder}/", folder
        raise DatasetMissing(f"{name}: no {what} in {where}: get it with `dcfl data get {name}`")
    return place, layout


def _absent(place: Path, layout: Layout) -> list[str]:
    return [file for file in layout.files if not os.path.isfile(place / file)]


def _files(place: Path, layout: Layout) -> list[Path]:
    return [place / file for file in layout.files]


def _read(place: Path, layout: Layout) -> Arrays:
    train = [(place / file, layout.train_rows) for file in layout.train]
    test = [(place / layout.test, layout.test_rows)]
    names = _class_names(place / layout.names, layout)
    return Arrays(*_gathered(train, layout), *_gathered(test, layout), class_names=names)


def _gathered(parts: list[tuple[Path, int]], layout: Layout) -> tuple[Pixels, Labels]:
    """The files' rows one after another, each copied once."""
    total = sum(rows for _, rows in parts)
    pixels, labels = np.empty((total, 32, 32, 3), np.uint8), np.empty(total, np.int64)
    start = 0
    for path, rows in parts:
        planes, part = _batch(path, layout, rows)
        stop = start + rows
        pixels[start:stop] = planes.reshape(rows, 3, 32, 32).transpose(0, 2, 3, 1)
        labels[start:stop] = part
        start = stop
    return pixels, labels


def _batch(path: Path, layout: Layout, rows: int) -> tuple[Pixels, Labels]:
    """One file as channel planes [rows, 3072] and labels [rows]."""
    with _refusing(path, layout):
        planes, labels = _pickled_batch(path, layout, rows)
        if not ((labels >= 0) & (labels < layout.classes)).all():
            raise Refused(f"a label is not between 0 and {layout.classes - 1}")
        return planes, labels


def _pickled_batch(path: Path, layout: Layout, rows: int) -> tuple[Pixels, Labels]:
    # Beside the pixels the official files spend about 35 bytes on each row's file name and label.
    values = unpickled(_bytes(path, rows * (ROW + 400) + 10_000), 8 * rows + 1_000)
    array, labels = values.get("data"), values.get(layout.label_key)
    planes = array.values if isinstance(array, PickledArray) else np.zeros(0, np.uint8)
    if planes.dtype != np.uint8 or planes.shape != (rows, ROW):
        raise Refused(f"no uint8 pixels of shape [{rows}, {ROW}] under 'data'")
    if not isinstance(labels, list) or any(type(label) is not int for label in labels):
        raise Refused(f"no list of integers under '{layout.label_key}'")
    if len(labels) != rows:
        raise Refused(f"{len(labels):,} labels for {rows:,} images")
    return planes, np.array(labels, np.int64)


def _class_names(path: Path, layout: Layout) -> tuple[str, ...]:
    with _refusing(path, layout):
        names = unpickled(_bytes(path, NAMES_BYTES), 2_000).get(layout.names_key)
        if not isinstance(names, list) or any(type(name) is not str for name in names):
            raise Refused("no list of class names")
        if len(names) != layout.classes or len(set(names)) != layout.classes:
            raise Refused(f"not {layout.classes} different class names")
        if not all(name.isascii() and name.isprintable() and name.strip() for name in names):
            raise Refused("a class name that is empty or not plain text")
        return tuple(names)


def _bytes(path: Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise Refused(f"larger than {limit:,} bytes")
        return stream.read(limit)


@contextmanager
def _refusing(path: Path, layout: Layout) -> Iterator[None]:
    """A hostile file may raise anything on the way; the user sees one kind of error, one line."""
    try:
        yield
    except OSError as error:
        raise DatasetCorrupt(f"{path}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        reason = str(error) if isinstance(error, Refused) else "damaged, or not of that form"
        raise DatasetCorrupt(
            f"{path}: not an official {layout.dataset} file ({reason}): "
            f"move {path.parent} away, then run `dcfl data get {layout.dataset}`"
        ) from error
