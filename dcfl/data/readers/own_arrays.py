"""A data set from what a user has in memory: NumPy arrays, tensors, lists of pictures, and data
sets of Hugging Face, told apart by what they can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dcfl.data.augment import measured
from dcfl.data.datasets import Dataset, Images
from dcfl.data.readers.arrays import Pixels, labels_of, numbered_names, pixels_of, require_range
from dcfl.data.splits.grouping import held_back, numbered
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.system.wording import printable

NAME = "arrays"
IMAGE_COLUMNS = ("image", "img", "images", "pixel_values")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target")


def dataset_from(
    images: Any,
    labels: Any,
    test: Any,
    class_names: Sequence[str],
    sites: Any,
    groups: Any,
    image_size: int | None,
) -> Dataset:
    """See `Dataset.from_arrays`."""
    images, labels, known = _given("images", images, labels)
    pixels = _pixels("images", images, image_size)
    names = tuple(map(str, class_names)) or known or _names_in(labels)
    found = _labels("labels", labels, names, len(pixels))
    names = names or numbered_names("labels", found)
    owners = _one_each("sites", sites, len(pixels))
    together = _one_each("groups", groups, len(pixels))
    numbers = None if together is None else torch.from_numpy(numbered(together.tolist()))
    whole = Images(torch.from_numpy(pixels), torch.from_numpy(found), numbers)
    if isinstance(test, float | int):
        held = _held_out(found, owners, together, float(test))
        train, tests = whole[torch.from_numpy(~held)], whole[torch.from_numpy(held)]
        owners = None if owners is None else owners[~held]
    else:
        images, labels = test if isinstance(test, tuple) and len(test) == 2 else (test, None)
        images, labels, _ = _given("test", images, labels)
        pixels = _pixels("test", images, image_size)
        found = _labels("test", labels, names, len(pixels))
        train, tests = whole, Images(torch.from_numpy(pixels), torch.from_numpy(found))
    for part in (train, tests):
        require_range("labels", part.labels.numpy(), len(names))
    if tests.pixels.shape[1:] != train.pixels.shape[1:]:
        raise DatasetCorrupt(
            f"test: images of {list(tests.pixels.shape[1:])}, and those to train on are "
            f"{list(train.pixels.shape[1:])}"
        )
    dataset = Dataset(NAME, train, tests, names, measured(train.pixels.numpy(), flip=False))
    return dataset if owners is None else _with_sites(dataset, owners)


# --- what was given -------------------------------------------------------------------------------


def _given(what: str, images: Any, labels: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Images and labels, of a data set with columns if that is what `images` is; and the names of
    the classes, where it knows them."""
    columns = getattr(images, "column_names", None)
    if columns is None:
        if labels is None:
            raise ConfigError(f"{what}: labels are missing, one for each image")
        return images, labels, ()
    if not isinstance(columns, list):  # train and test side by side
        raise ConfigError(
            f'{what}: give one part of the data set, as in data["train"], and test=data["test"]'
        )
    label = labels if isinstance(labels, str) else _column(what, columns, LABEL_COLUMNS)
    image = _column(what, columns, IMAGE_COLUMNS)
    if label not in columns:
        raise ConfigError(f"{what}: no column {label!r}; there are {', '.join(columns)}")
    feature = (getattr(images, "features", None) or {}).get(label)
    names = tuple(getattr(feature, "names", None) or ())
    chosen = images[label] if labels is None or isinstance(labels, str) else labels
    return images[image], chosen, names


def _column(what: str, columns: Sequence[str], usual: Sequence[str]) -> str:
    found = next((name for name in usual if name in columns), None)
    if found is None:
        raise ConfigError(
            f"{what}: none of its columns ({', '.join(columns)}) is called "
            f"{' or '.join(usual)}; give images and labels themselves"
        )
    return found


def _array(what: str, values: Any) -> NDArray[Any]:
    """Takes an array, a tensor on any device, or a list of either."""
    if isinstance(values, torch.Tensor):
        return np.asarray(values.detach().cpu().numpy())
    if not hasattr(values, "__array__"):
        values = [_array(what, one) if hasattr(one, "__array__") else one for one in values]
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DatasetCorrupt(
            f"{what}: they are not all of the same size: image_size=64, say, makes them so"
        ) from error


def _pixels(what: str, images: Any, image_size: int | None) -> Pixels:
    if not hasattr(images, "__array__") and not isinstance(images, torch.Tensor):
        images = list(images)
        if images and all(hasattr(one, "convert") for one in images):
            return _of_pictures(what, images, image_size)
    array = _array(what, images)
    if image_size is not None and array.shape[1:3] != (image_size, image_size):
        raise ConfigError(f"image_size is for pictures of PIL; {what} are {list(array.shape)}")
    return pixels_of(what, array)


def _of_pictures(what: str, pictures: Sequence[Any], image_size: int | None) -> Pixels:
    """Takes PIL's pictures: grey where all are, else in colour."""
    sizes = {picture.size for picture in pictures}
    if image_size is None and (len(sizes) > 1 or len({*next(iter(sizes))}) > 1):
        raise DatasetCorrupt(
            f"{what}: pictures must be square and of one size, or image_size=64, say, makes them so"
        )
    deep = next((one.mode for one in pictures if one.mode.startswith(("I", "F"))), None)
    if deep is not None:
        raise DatasetCorrupt(f"{what}: mode {deep} has more than 8 bits; scale it to 8 first")
    mode = "L" if all(one.mode in ("1", "L") for one in pictures) else "RGB"
    side = image_size or next(iter(sizes))[0]
    rows = [
        np.asarray(one.convert(mode).resize((side, side), Image.Resampling.BICUBIC))
        for one in pictures
    ]
    return pixels_of(what, np.stack(rows))


def _names_in(labels: Any) -> tuple[str, ...]:
    """The different labels, if they are words and not numbers."""
    array = _array("labels", labels)
    return tuple(sorted({*map(str, array.tolist())})) if array.dtype.kind in "USO" else ()


def _labels(what: str, labels: Any, names: Sequence[str], images: int) -> NDArray[np.int64]:
    array = _array(what, labels)
    if array.dtype.kind in "USO":
        words = [str(one) for one in array.tolist()]
        unknown = next((word for word in words if word not in names), None)
        if unknown is not None:
            raise DatasetCorrupt(f"{what}: {printable(unknown, 40)} is none of the class names")
        found = np.array([names.index(word) for word in words], dtype=np.int64)
    else:
        found = labels_of(what, array)
    _require_same(what, len(found), images)
    return found


def _one_each(what: str, values: Any, count: int) -> NDArray[np.str_] | None:
    """A name for each image."""
    if values is None:
        return None
    names = np.array([str(one) for one in _array(what, values).tolist()])
    _require_same(what, len(names), count)
    return names


def _require_same(what: str, found: int, images: int) -> None:
    if found != images:
        raise DatasetCorrupt(f"{what}: {found:,} for {images:,} images; give one for each")


# --- what becomes of it ---------------------------------------------------------------------------


def _held_out(
    labels: NDArray[np.int64],
    sites: NDArray[np.str_] | None,
    groups: NDArray[np.str_] | None,
    share: float,
) -> NDArray[np.bool_]:
    """Which are for testing: of each class at each site, evenly over its images; in whole groups
    where there are some."""
    if not 0 < share < 1:
        raise ConfigError(
            f"test = {share:g}: a share of the images between 0 and 1, or (images, labels)"
        )
    held = np.zeros(len(labels), dtype=bool)
    owners = np.zeros(len(labels), dtype=np.int64) if sites is None else numbered(sites.tolist())
    for owner in range(int(owners.max(initial=-1)) + 1):
        rows = np.flatnonzero(owners == owner)
        if groups is not None:
            chosen = held_back(groups[rows].tolist(), labels[rows].tolist(), 1 / share)
            held[rows] = np.isin(groups[rows], [*chosen])
            continue
        for label in np.unique(labels[rows]):
            own = rows[labels[rows] == label]
            count = min(max(round(share * len(own)), 1), len(own) - 1)  # one remains to train on
            held[own[((np.arange(count) + 1) * len(own)) // max(count, 1) - 1]] = True
    if not held.any():
        raise DatasetCorrupt("no image is left for testing; some class needs two or more")
    return held


def _with_sites(dataset: Dataset, owners: NDArray[np.str_]) -> Dataset:
    names = list(dict.fromkeys(owners.tolist()))
    parts = [np.flatnonzero(owners == name) for name in names]
    poor = next((name for name, part in zip(names, parts, strict=True) if len(part) < 2), None)
    if poor is not None or len(names) < 2:
        raise DatasetCorrupt(
            f"sites: {printable(poor, 40)} needs at least 2 images to train on"
            if poor is not None
            else f"sites: all images are of {printable(names[0], 40)}; leave sites out"
        )
    site_names = tuple(printable(name) for name in names)
    return replace(dataset, partition=Partition.of_parts(parts), site_names=site_names)
