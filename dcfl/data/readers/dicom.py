"""One DICOM file becomes one picture. Needs the extra `dcfl[dicom]`."""

from __future__ import annotations

from collections.abc import MutableSequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dcfl.data.readers.decoding import GreyRange, full_range, to_8_bits
from dcfl.errors import ConfigError
from dcfl.system.wording import install_command, printable

if TYPE_CHECKING:
    from pydicom import Dataset
    from pydicom.uid import UID


DICOM_EXTENSIONS = {".dcm", ".dicom"}
GREY = {"MONOCHROME1", "MONOCHROME2"}
COLOUR = {"RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT"}
FUNCTIONAL_GROUPS = ["SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"]
TAGS: list[Any] = [
    *("Rows", "Columns", "NumberOfFrames", "PhotometricInterpretation"),
    *("BitsStored", "PixelRepresentation"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction"),
    *FUNCTIONAL_GROUPS,
]


def read_dicom(path: Path, window: GreyRange | None) -> Image.Image:
    """An RGB picture. `window` is in the units of the rescaled levels; without it the file's own is
    used, and without that the full range of the bits that the file stores."""
    try:
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise ConfigError(
            f"{printable(path)}: DICOM needs pydicom: {install_command('dicom')}"
        ) from error
    header = _header(path)
    _require_one_picture(header)
    levels = pixel_array(path, index=0)
    if header.PhotometricInterpretation in GREY:
        return Image.fromarray(_grey(levels, header, window)).convert("RGB")
    if levels.dtype != np.uint8:
        raise ValueError("more than 8 bits per colour")
    return Image.fromarray(levels)


def _header(path: Path) -> Dataset:
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    try:
        # Nothing would limit how much comes out of a deflated file.
        syntax = read_file_meta_info(path).get("TransferSyntaxUID")
        if syntax == DeflatedExplicitVRLittleEndian:
            raise ValueError("a deflated DICOM file: save it with another transfer syntax")
        _require_decoder(path, syntax)
        return dcmread(path, stop_before_pixels=True, specific_tags=TAGS)
    except InvalidDicomError as error:
        raise ValueError("not a DICOM file") from error


def _require_decoder(path: Path, syntax: UID | None) -> None:
    """No file is skipped for lack of one: the data must not depend on what is installed."""
    from pydicom.pixels.decoders.base import get_decoder

    try:
        decoder = get_decoder(syntax or "")
    except NotImplementedError:
        raise ValueError(f"no picture (transfer syntax {syntax and syntax.name})") from None
    if not decoder.is_available:
        raise ConfigError(
            f"{printable(path)}: pydicom needs a plugin to decode {decoder.UID.name} "
            f"({'; '.join(decoder.missing_dependencies)}); or save it uncompressed"
        )


def _require_one_picture(header: Dataset) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and header.Rows * header.Columns > limit:
        raise Image.DecompressionBombError
    # The first slice of a volume is no stand-in for it.
    if (frames := int(header.get("NumberOfFrames") or 1)) > 1:
        raise ValueError(f"{frames} frames: save the one that counts as a file of its own")
    if header.PhotometricInterpretation not in GREY | COLOUR:
        raise ValueError(f"{header.PhotometricInterpretation}: save it as MONOCHROME2 or RGB")


def _grey(
    levels: NDArray[np.integer[Any]], header: Dataset, window: GreyRange | None
) -> NDArray[np.uint8]:
    slope, intercept = _rescaling(header)
    shown = window or _own_window(header)
    if shown is None:
        stored = full_range(header.BitsStored, signed=header.PixelRepresentation == 1)
        shown = GreyRange(*sorted(level * slope + intercept for level in stored))
    shades = to_8_bits(levels * slope + intercept, shown)
    return 255 - shades if header.PhotometricInterpretation == "MONOCHROME1" else shades


def _rescaling(header: Dataset) -> tuple[float, float]:
    if "ModalityLUTSequence" in header:
        raise ValueError("a table of levels instead of a slope and an intercept")
    if any(name in header for name in FUNCTIONAL_GROUPS):
        raise ValueError("an enhanced DICOM file: save it as a single-frame one")
    slope, intercept = _number(header, "RescaleSlope"), _number(header, "RescaleIntercept")
    if slope == 0:
        raise ValueError("RescaleSlope 0")
    return 1.0 if slope is None else slope, intercept or 0.0


def _own_window(header: Dataset) -> GreyRange | None:
    """The file's first window, by the function that it names (DICOM PS3.3, C.11.2.1.2)."""
    centre, width = _number(header, "WindowCenter"), _number(header, "WindowWidth")
    if centre is None or width is None:
        return None
    function = header.get("VOILUTFunction") or "LINEAR"
    if function == "LINEAR_EXACT" and width > 0:
        return GreyRange.around(centre, width)
    if function == "LINEAR" and width >= 1:
        return GreyRange.around(centre - 0.5, width - 1)
    raise ValueError(f"a {function} window of width {width:g}: set data.window")


def _number(header: Dataset, name: str) -> float | None:
    """The tag's number; the first where there are several, as there may be of windows."""
    value = header.get(name)
    if isinstance(value, MutableSequence):
        value = value[0] if value else None
    if value is None or value == "":
        return None
    if not isfinite(number := float(value)):
        raise ValueError(f"{name} {number}")
    return number
