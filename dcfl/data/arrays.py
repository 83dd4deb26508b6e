"""What every reader of files returns: decoded images as plain arrays, before they are a Dataset."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Arrays:
    train_pixels: Pixels  # uint8 [n, H, W, C], or feature vectors: float32 [n, d]
    train_labels: NDArray[np.int64]  # [n]
    test_pixels: Pixels
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    # For a federation that is already split: site k owns the training rows
    # site_offsets[k] : site_offsets[k + 1]; empty otherwise.
    site_names: tuple[str, ...] = ()
    site_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    # Pictures of one patient, say, have the same number; empty where none belong together.
    train_groups: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    test_groups: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    broken: int = 0  # pictures that were left out
    notes: tuple[str, ...] = ()  # what the user should be told at every start
