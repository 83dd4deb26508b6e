"""Images or feature vectors, and labels, in one .npz file, read without trusting it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dcfl.data.readers.arrays import (
    Arrays,
    as_given,
    floats_of,
    labels_of,
    numbered_names,
    pixels_of,
    require_range,
)
from dcfl.errors import DatasetCorrupt, DatasetMissing, DCFLError
from dcfl.system.storage import open_data, replacing, storage

SPELLINGS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_features", "train_labels", "test_features", "test_labels"),
    ("train_inputs", "train_labels", "test_inputs", "test_labels"),  # for the model as they are
)
NUMBERS = ("site_offsets", "train_groups", "test_groups", "test_owners")
SCALES = ("mean", "std")
OPTIONAL = ("class_names", "site_names", *NUMBERS, *SCALES)
MAX_BYTES = 4 * 2**30  # of all arrays together, unpacked
MAX_FILE = 8_000_000_000  # bytes: it may hold arrays that nobody reads
MAX_SMALL = 1_000_000_000  # of other files: zipfile reads a list of contents of any length
# Photographs shrink by a factor of 2, line drawings by 20 or 50; zeros by 1000.
MAX_RATIO, RATIO_MATTERS_FROM = 200, 64 * 2**20


def read_npz(path: Path) -> Arrays:
    """Keys: {train,test}_{images,labels}, {x,y}_{train,test}, {train,test}_{features,labels} or
    {train,test}_{inputs,labels}, class_names if wanted, and what `write_npz` adds."""
    if not path.is_file():
        raise DatasetMissing(f"{path}: {'not a' if path.exists() else 'no such'} file")
    with _one_line(str(path)), open_data(path, MAX_FILE) as stream, ZipFile(stream) as archive:
        members = _members(path, archive)
        keys = max(SPELLINGS, key=lambda keys: len(members.keys() & set(keys)))
        if missing := [key for key in keys if key not in members]:
            raise DatasetCorrupt(f"{path}: no {missing[0]}; needed are {', '.join(keys)}")
        optional = tuple(key for key in OPTIONAL if key in members)
        _require_modest(path, [members[key] for key in keys + optional])
        stored = {key: _read(path, archive, key, members[key]) for key in optional + keys}
    names = _names(path, "class_names", stored.get("class_names"))
    read = as_given if keys == SPELLINGS[-1] else pixels_of
    pixels = [read(f"{path}: {key}", stored.pop(key)) for key in keys[::2]]
    if read is as_given and pixels[0].dtype == np.float32 and pixels[0].ndim == 2:
        stored |= {"mean": np.zeros(pixels[0].shape[1]), "std": np.ones(pixels[0].shape[1])}
    labels = [labels_of(f"{path}: {key}", stored[key]) for key in keys[1::2]]
    for part in (0, 1):
        if len(pixels[part]) != len(labels[part]):
            raise DatasetCorrupt(
                f"{path}: {keys[2 * part]} has {len(pixels[part])} images and "
                f"{keys[2 * part + 1]} {len(labels[part])} labels"
            )
    if pixels[0].shape[1:] != pixels[1].shape[1:]:
        raise DatasetCorrupt(
            f"{path}: {keys[0]} are {list(pixels[0].shape[1:])} "
            f"and {keys[2]} {list(pixels[1].shape[1:])}"
        )
    if names is None:
        names = numbered_names(f"{path}: {keys[1]}", labels[0])
    for key, numbers in zip(keys[1::2], labels, strict=True):
        require_range(f"{path}: {key}", numbers, len(names))
    arrays = Arrays(pixels[0], labels[0], pixels[1], labels[1], names)
    return _with_the_rest(path, arrays, stored)


def write_npz(path: Path, arrays: Arrays) -> None:
    as_they_are = not len(arrays.mean)
    keys = SPELLINGS[-1] if as_they_are else SPELLINGS[0 if arrays.train_pixels.ndim > 2 else 2]
    parts = (arrays.train_pixels, arrays.train_labels, arrays.test_pixels, arrays.test_labels)
    stored: dict[str, Any] = dict(zip(keys, parts, strict=True))
    stored |= {key: np.asarray(getattr(arrays, key)) for key in OPTIONAL}
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **{key: array for key, array in stored.items() if array.size})


def _with_the_rest(path: Path, arrays: Arrays, stored: dict[str, NDArray[Any]]) -> Arrays:
    sites = _names(path, "site_names", stored.get("site_names")) or ()
    tests, wide = len(arrays.test_labels), arrays.train_pixels.shape[-1]
    lengths = {"train_groups": len(arrays.train_labels), "test_groups": tests, "test_owners": tests}
    lengths |= {"mean": wide, "std": wide}
    found: dict[str, Any] = {key: stored[key].astype(float) for key in SCALES if key in stored}
    found |= {key: stored[key].astype(np.int64) for key in NUMBERS if key in stored}
    wrong = [
        key for key, numbers in found.items() if numbers.shape != (lengths.get(key, len(numbers)),)
    ]
    wrong += [key for key in SCALES if found and not np.isfinite(found.get(key, 0)).all()]
    if wrong or found.get("std", np.ones(1)).min() <= 0 or ("mean" in found) != ("std" in found):
        raise DatasetCorrupt(f"{path}: {(wrong or ['std'])[0]} does not fit the rest")
    steps, owners = found.get("site_offsets", ()), found.get("test_owners", ())
    if len(steps) or len(sites) or len(owners):
        count, rows = len(steps) - 1, len(arrays.train_labels)
        ordered = len(steps) > 1 and not steps[0] and steps[-1] == rows and min(np.diff(steps)) >= 0
        known = not len(owners) or 0 <= min(owners) <= max(owners) < count
        if not ordered or not known or len(sites) not in (0, count):
            raise DatasetCorrupt(f"{path}: site_offsets do not divide the rows among the sites")
    return replace(arrays, site_names=sites, **found)


def read_arrays(path: Path, keys: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """These arrays of any .npz, plain numbers or text; DatasetCorrupt if one is missing or not."""
    with _one_line(str(path)), open_data(path, MAX_SMALL) as stream, ZipFile(stream) as archive:
        members = _members(path, archive)
        if missing := [key for key in keys if key not in members]:
            raise DatasetCorrupt(f"{path}: no {missing[0]}")
        _require_modest(path, [members[key] for key in keys], any_ratio=True)
        return {key: _read(path, archive, key, members[key]) for key in keys}


class StoredEmbeddings(NamedTuple):
    """The embeddings of pictures, a row each."""

    features: NDArray[np.float32]  # [n, d]
    files: list[str]
    labels: NDArray[np.int64]  # -1: not known
    class_names: tuple[str, ...]

    def class_of(self, row: int) -> str | None:
        label = int(self.labels[row])
        return None if label < 0 else self.class_names[label]


def read_embedded(path: Path) -> StoredEmbeddings | None:
    """What `dcfl embed` has written of pictures; `features` are enough. None if there are none."""
    with _one_line(str(path)), open_data(path, MAX_FILE) as stream, ZipFile(stream) as archive:
        known = {*_members(path, archive)} & {"features", "files", "labels", "class_names"}
    if "features" not in known:
        return None
    stored = read_arrays(path, tuple(known))
    where = f"{path}: features"
    if stored["features"].ndim != 2:
        raise DatasetCorrupt(f"{where}: one vector for each example is needed")
    features = floats_of(where, stored["features"])
    count = len(features)
    files = stored.get("files", np.array([f"{path}/{row}" for row in range(count)]))
    labels = stored.get("labels", np.full(count, -1))
    names = _names(path, "class_names", stored.get("class_names")) or ()
    fits = labels.dtype.kind in "iu" and len(files) == len(labels) == count
    if not fits or not -1 <= labels.min() <= labels.max() < max(len(names), 0):
        raise DatasetCorrupt(f"{path}: labels, files and class_names do not fit the features")
    return StoredEmbeddings(features, [str(file) for file in files], labels.astype(np.int64), names)


@contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Zip, zlib and numpy meet hostile bytes with a dozen kinds of exception: all become one."""
    try:
        yield
    except DCFLError:
        raise
    except Exception as error:
        what = "cannot be read" if isinstance(error, OSError) else "not a sound .npz file"
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise DatasetCorrupt(f"{where}: {what} ({reason or type(error).__name__})") from error


# --- before anything is unpacked ------------------------------------------------------------------


def _members(path: Path, archive: ZipFile) -> dict[str, ZipInfo]:
    members: dict[str, ZipInfo] = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        if key in members:
            raise DatasetCorrupt(f"{path}: {key[:40]!r} is there twice")
        members[key] = info
    return members


def _require_modest(path: Path, members: list[ZipInfo], any_ratio: bool = False) -> None:
    total = sum(info.file_size for info in members)
    if total > MAX_BYTES:
        raise DatasetCorrupt(
            f"{path}: {total / 2**30:.0f} GiB when unpacked, more than {MAX_BYTES / 2**30:.0f}"
        )
    for info in members:
        ratio = 0 if any_ratio else info.file_size / max(info.compress_size, 1)
        if info.file_size > RATIO_MATTERS_FROM and ratio > MAX_RATIO:
            key = info.filename.removesuffix(".npy")
            raise DatasetCorrupt(f"{path}: {key} would grow {ratio:.0f}-fold when unpacked")


def _read(path: Path, archive: ZipFile, key: str, info: ZipInfo) -> NDArray[Any]:
    where = f"{path}: {key}"
    with _one_line(where):
        with archive.open(info) as stream:
            _require_plain(where, stream, info.file_size)
        with archive.open(info) as stream:
            array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
            stream.read()  # to the end, where the checksum is compared
    return array


def _require_plain(where: str, stream: IO[bytes], size: int) -> None:
    """What the header declares must be plain numbers or text, and fit what is stored."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DatasetCorrupt(f"{where}: not a plain array")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.hasobject:
        raise DatasetCorrupt(f"{where}: an array of Python objects; save plain numbers or text")
    if dtype.kind not in "iufbUS":
        raise DatasetCorrupt(f"{where}: {dtype} is neither numbers nor text")
    if stream.tell() + math.prod(shape) * dtype.itemsize != size or min(shape, default=0) < 0:
        raise DatasetCorrupt(f"{where}: {list(shape)} of {dtype} does not fit {size} bytes")


# --- what belongs together ----------------------------------------------------------------------


def _names(path: Path, key: str, stored: NDArray[Any] | None) -> tuple[str, ...] | None:
    if stored is None:
        return None
    where = f"{path}: {key}"
    if stored.dtype.kind not in "US" or stored.ndim != 1:
        raise DatasetCorrupt(f"{where}: must be a list of text, not {stored.dtype}")
    with _one_line(where):
        names = [n.decode("utf-8") if isinstance(n, bytes) else str(n) for n in stored.tolist()]
    if len(set(names)) < len(names) or not all(n.isprintable() and n.strip() for n in names):
        raise DatasetCorrupt(f"{where}: two names are the same, or one cannot be printed")
    if len(names) < 2:
        raise DatasetCorrupt(f"{where}: {len(names)} name; two are needed")
    return tuple(names)
