"""Grey levels of more than 8 bits become 8 by a fixed range, never by a picture's own extremes: the
same tissue must look the same in every picture and at every site."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_BITS = 16  # whose full range is a sensible default; that of 32 would be black throughout


class Range(NamedTuple):
    """The levels that become 0 and 255."""

    black: float
    white: float

    @classmethod
    def around(cls, centre: float, width: float) -> Range:
        return cls(centre - width / 2, centre + width / 2)


def full_range(bits: int, signed: bool) -> Range:
    if bits > MOST_BITS:
        raise ValueError(
            f"{bits} bits per pixel, without a fixed range: "
            f"set data.window, or save it with 8 or 16"
        )
    lowest = -(2 ** (bits - 1)) if signed else 0
    return Range(lowest, lowest + 2**bits - 1)


def to_8_bits(levels: NDArray[Any], shown: Range) -> NDArray[np.uint8]:
    """Linear between black and white, rounded half up; black below and white above."""
    black, white = shown
    if white <= black:  # a window without width is a threshold
        return np.where(levels > black, 255, 0).astype(np.uint8)
    shades = levels.astype(np.float64)
    if np.isnan(shades).any():
        raise ValueError("pixels that are not numbers")
    shades -= black
    shades *= 255  # before the division, so that integers stay exact and ties are ties
    shades /= white - black
    np.clip(shades, 0, 255, out=shades)
    shades += 0.5
    return shades.astype(np.uint8)
