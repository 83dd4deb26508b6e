"""A picture becomes a square of RGB pixels, by NumPy and Pillow alone: `dcfl export` copies all of
this into the script that it writes beside a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import BITSPERSAMPLE, SAMPLEFORMAT, TiffImageFile

# Pillow knows forty more formats, some of which start other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MOST_BITS = 16  # whose full range is a sensible default; that of 32 would be black throughout

Fit = Literal["resize", "crop", "pad"]


class GreyRange(NamedTuple):
    """The levels that become 0 and 255."""

    black: float
    white: float

    @classmethod
    def around(cls, centre: float, width: float) -> GreyRange:
        return cls(centre - width / 2, centre + width / 2)


def full_range(bits: int, signed: bool) -> GreyRange:
    if bits > MOST_BITS:
        raise ValueError(
            f"{bits} bits per pixel, without a fixed range: "
            f"set data.window, or save it with 8 or 16"
        )
    lowest = -(2 ** (bits - 1)) if signed else 0
    return GreyRange(lowest, lowest + 2**bits - 1)


def to_8_bits(levels: NDArray[Any], shown: GreyRange) -> NDArray[np.uint8]:
    """Shades are linear between black and white, and rounded half up."""
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


def read_by_pillow(
    path: Path, size: int, fit: Fit | Literal["exact"], window: GreyRange | None
) -> Image.Image:
    """In RGB, and not yet fitted; the first page or frame where there are several."""
    with path.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise Image.DecompressionBombError
        if fit == "exact" and image.size != (size, size):
            raise ValueError(f"{image.width}x{image.height} pixels instead of {size}x{size}")
        # A JPEG of a camera is decoded at a fraction of its size, still twice what is needed.
        image.draft(None, (2 * size, 2 * size))
        image.load()  # a TIFF turns itself now, and forgets its orientation
        ImageOps.exif_transpose(image, in_place=True)
        return _rgb(image, window)


def fitted(picture: Image.Image, size: int, fit: Fit | Literal["exact"]) -> Image.Image:
    square = (size, size)
    if fit == "crop":
        return ImageOps.fit(picture, square, Image.Resampling.BICUBIC)
    if picture.size == square:
        return picture
    if fit == "pad":
        return padded(picture, size)
    return picture.resize(square, Image.Resampling.BICUBIC)


def padded(picture: Image.Image, size: int) -> Image.Image:
    longest = max(picture.size)
    width, height = (max(round(side * size / longest), 1) for side in picture.size)
    canvas = Image.new("RGB", (size, size))
    inner = picture.resize((width, height), Image.Resampling.BICUBIC)
    canvas.paste(inner, ((size - width) // 2, (size - height) // 2))
    return canvas


def _rgb(image: Image.Image, window: GreyRange | None) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        levels, bits, signed = _deep_levels(image)
        shades = to_8_bits(levels, window or full_range(bits, signed))
        return Image.fromarray(shades).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _deep_levels(image: Image.Image) -> tuple[NDArray[Any], int, bool]:
    """The levels of one channel with more than 8 bits, how many bits, and whether they have a sign.

    Pillow's mode "I" holds 32 bits, whatever the file has.
    """
    levels = np.asarray(image)
    if image.mode == "F":
        return levels, 32, True
    if image.mode != "I" or not isinstance(image, TiffImageFile):  # PNG and PPM have no 32 bits
        return levels, 16, False
    bits = 16 if image.tag_v2.get(BITSPERSAMPLE) == (16,) else 32
    signed = image.tag_v2.get(SAMPLEFORMAT) == (2,)
    return levels if signed else levels.view(np.uint32), bits, signed
