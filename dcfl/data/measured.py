"""How images of one's own become inputs: normalised by what they are, augmented as is usual."""

from __future__ import annotations

import numpy as np

from dcfl.data.arrays import Pixels
from dcfl.data.augment import Augmentation, Preparation


def usual_augmentation(size: int, flip: bool) -> Augmentation:
    return Augmentation(crop=size // 8, flip=flip)


def measured(pixels: Pixels, flip: bool) -> Preparation:
    """Mean and deviation of each channel over (at most 10,000 of) the training images, or of each
    number over all feature vectors."""
    if pixels.ndim == 2:
        return _measured_vectors(pixels)
    pixels = pixels[:: max(len(pixels) // 10_000, 1)]
    levels = [np.bincount(pixels[..., c].ravel(), minlength=256) for c in range(pixels.shape[3])]
    shades = np.arange(256) / 255
    means = [float(np.average(shades, weights=count)) for count in levels]
    deviations = [
        float(np.sqrt(np.average((shades - mean) ** 2, weights=count)))
        for mean, count in zip(means, levels, strict=True)
    ]
    size = pixels.shape[1]
    return Preparation(
        tuple(round(mean, 4) for mean in means),
        tuple(
            max(round(deviation, 4), 0.01) for deviation in deviations
        ),  # not 0, for blank images
        usual_augmentation(size, flip),
    )


def _measured_vectors(vectors: Pixels) -> Preparation:
    """A number that is the same in all of them is not scaled."""
    exact = vectors.astype(np.float64)
    means, deviations = exact.mean(axis=0), exact.std(axis=0)
    deviations[deviations < 1e-6 * np.abs(means).clip(min=1e-6)] = 1.0
    rounded = [numbers.astype(np.float32).tolist() for numbers in (means, deviations)]
    return Preparation(tuple(rounded[0]), tuple(rounded[1]))
