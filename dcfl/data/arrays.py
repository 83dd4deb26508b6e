"""What every reader of files returns: decoded images as plain arrays, before they are a Dataset."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Arrays:
    train_pixels: NDArray[np.uint8]  # [n, H, W, C]
    train_labels: NDArray[np.int64]  # [n]
    test_pixels: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    # For a federation that is already split: site k owns the training rows
    # site_offsets[k] : site_offsets[k + 1]; empty otherwise.
    site_names: tuple[str, ...] = ()
    site_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    notes: tuple[str, ...] = ()  # what the user should be told at every start
