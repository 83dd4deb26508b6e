"""Arrays as people have them, as pixels and labels; refuses what it would have to guess."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcfl.errors import DatasetCorrupt

Pixels = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int32]


def _none() -> NDArray[Any]:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Arrays:
    train_pixels: Pixels  # uint8 [n, H, W, C]; float32 or int32 [n, ...]: see `as_given`
    train_labels: NDArray[np.int64]  # [n]
    test_pixels: Pixels
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    # For a federation that is already split: site k owns the training rows
    # site_offsets[k] : site_offsets[k + 1]; empty otherwise.
    site_names: tuple[str, ...] = ()
    site_offsets: NDArray[np.int64] = field(default_factory=_none)
    # Pictures of one patient, say, have the same number; empty where none belong together.
    train_groups: NDArray[np.int64] = field(default_factory=_none)
    test_groups: NDArray[np.int64] = field(default_factory=_none)
    # Of each test row, the site to which it belongs; empty where they are nobody's.
    test_owners: NDArray[np.int64] = field(default_factory=_none)
    # float64: what images and feature vectors are normalised by; empty: what was measured.
    mean: NDArray[Any] = field(default_factory=_none)
    std: NDArray[Any] = field(default_factory=_none)
    broken: int = 0  # pictures that were left out
    notes: tuple[str, ...] = ()  # what the user should be told at every start


BLOCK = 4096  # rows of floating-point images converted at a time


def pixels_of(where: str, images: NDArray[Any]) -> Pixels:
    """Images as [n, H, W, C], or feature vectors [n, d]."""
    if images.ndim == 2 and images.dtype.kind == "f":
        return floats_of(where, images)
    laid_out = _channels_last(where, images)
    if images.dtype == np.uint8:
        return np.ascontiguousarray(laid_out)
    if images.dtype.kind == "f":
        return _from_floats(where, laid_out)
    raise DatasetCorrupt(f"{where}: images must be uint8 or floats in [0, 1], not {images.dtype}")


def floats_of(where: str, values: NDArray[Any]) -> NDArray[np.float32]:
    if values.size == 0:
        raise DatasetCorrupt(f"{where}: no numbers in {list(values.shape)}")
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(floats).all():
        raise DatasetCorrupt(f"{where}: a number is not finite in float32")
    return floats


def as_given(where: str, values: NDArray[Any]) -> NDArray[np.float32] | NDArray[np.int32]:
    """What is no image: floats or non-negative integers of any shape, for the model as they are.
    Channels alone are moved, to where networks expect those of images."""
    if values.ndim < 2:
        raise DatasetCorrupt(f"{where}: one array for each example, not {list(values.shape)}")
    if values.dtype.kind == "f":
        first = values.ndim == 4 and values.shape[3] in (1, 3) and values.shape[1] not in (1, 3)
        return floats_of(where, values.transpose(0, 3, 1, 2) if first else values)
    if values.dtype.kind not in "iub":
        raise DatasetCorrupt(f"{where}: numbers are needed, not {values.dtype}")
    if values.size == 0 or not 0 <= int(values.min()) <= int(values.max()) < 2**31 - 1:
        raise DatasetCorrupt(
            f"{where}: integers are token ids, from 0 to 2**31: give a table of numbers as floats, "
            f"as .astype(float) makes them"
        )
    return np.ascontiguousarray(values, np.int32)


def inputs_of(where: str, values: NDArray[Any]) -> Pixels:
    if values.ndim == 2 and values.dtype.kind == "f":
        return floats_of(where, values)
    if _laid_out(values) is None or not values.size:
        return as_given(where, values)
    if values.dtype.kind == "f" and not 0 <= values.min() <= values.max() <= 1:
        return as_given(where, values)
    if values.ndim == 3 and values.dtype.kind != "f" and values.dtype != np.uint8:
        return as_given(where, values)
    return pixels_of(where, values)


def _channels_last(where: str, images: NDArray[Any]) -> NDArray[Any]:
    if images.size == 0:
        raise DatasetCorrupt(f"{where}: no images in {list(images.shape)}")
    laid_out = _laid_out(images)
    if laid_out is None:
        raise DatasetCorrupt(
            f"{where}: images must be [n, height, width] or [n, height, width, 1 or 3] or "
            f"[n, 1 or 3, height, width], square unless they are uint8, and feature vectors "
            f"floats [n, length], not {list(images.shape)}"
        )
    return laid_out


def _laid_out(images: NDArray[Any]) -> NDArray[Any] | None:
    """[n, H, W, C], if they look like images: only bytes that are not square do."""
    shape = images.shape
    for any_size in (False, images.dtype == np.uint8):
        if images.ndim == 3 and (any_size or shape[1] == shape[2]):
            return images[..., None]
        if images.ndim == 4 and shape[3] in (1, 3) and (any_size or shape[1] == shape[2]):
            return images
        if images.ndim == 4 and shape[1] in (1, 3) and (any_size or shape[2] == shape[3]):
            return images.transpose(0, 2, 3, 1)
    return None


def _from_floats(where: str, images: NDArray[Any]) -> NDArray[np.uint8]:
    pixels = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), BLOCK):
        block = images[start : start + BLOCK]
        low, high = block.min(), block.max()
        if not (low >= 0 and high <= 1):  # NaN is neither
            raise DatasetCorrupt(
                f"{where}: floating-point images must lie in [0, 1], found {low:g} to {high:g}"
            )
        pixels[start : start + BLOCK] = np.rint(block.astype(np.float64) * 255)
    return pixels


def labels_of(where: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    if labels.dtype.kind not in "iu":
        raise DatasetCorrupt(f"{where}: labels must be integers, not {labels.dtype}")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise DatasetCorrupt(f"{where}: labels must be [n], not {list(labels.shape)}")
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 2**31:
        raise DatasetCorrupt(f"{where}: labels from {labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


def numbered_names(where: str, labels: NDArray[np.int64]) -> tuple[str, ...]:
    present = np.unique(labels)
    if len(present) < 2:
        raise DatasetCorrupt(f"{where}: only one class; a classifier needs two")
    if present[-1] != len(present) - 1:
        missing = np.flatnonzero(present != np.arange(len(present)))[0]
        raise DatasetCorrupt(
            f"{where}: labels go up to {present[-1]} and {missing} is not among them: "
            f"number them from 0 without gaps, or add class_names"
        )
    return tuple(str(label) for label in range(len(present)))


def require_range(where: str, labels: NDArray[np.int64], classes: int) -> None:
    if labels.max() >= classes:
        raise DatasetCorrupt(f"{where}: label {labels.max()} with {classes} classes")
