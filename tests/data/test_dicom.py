"""DICOM files made by pydicom, against shades worked out by hand."""

import random
import sys
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, features
from pydicom import Dataset, dcmread
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLosslessSV1,
    RLELossless,
)

from dcfl.data.readers.dicom import _own_window, to_8_bits
from dcfl.data.readers.folders import Reading, read_folder
from dcfl.errors import ConfigError, DatasetCorrupt, DCFLError
from dcfl.system.wording import install_command
from tests.data.pictures import class_folders, save_dicom

# A CT's stored levels, which its slope and intercept turn into Hounsfield units.
STORED = np.array([[0, 864], [1064, 1263], [1264, 4095], [863, 865]], np.uint16)
UNITS = {"RescaleSlope": 1, "RescaleIntercept": -1024, "BitsStored": 12}


def found(folder: Path, **reading: object) -> np.ndarray:
    """What becomes of the picture a/x.dcm, [4, 4, 3]."""
    class_folders(folder, b=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_folder(folder, Reading(4, **reading)).train_pixels[0]  # type: ignore[arg-type]


def shades(folder: Path, levels: np.ndarray = STORED, window: object = (), **tags: object) -> list:
    """Of [4, 2] levels; each is doubled, so that the picture is square and keeps its pixels."""
    save_dicom(folder / "a" / "x.dcm", np.repeat(levels, 2, axis=1), **tags)
    pixels = found(folder, window=window)
    assert (pixels == pixels[..., :1]).all()
    return pixels[:, ::2, 0].ravel().tolist()


def refusal(folder: Path, error: type[DCFLError] = DatasetCorrupt, **reading: object) -> str:
    with pytest.raises(error) as caught:
        found(folder, **reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- grey levels ----------------------------------------------------------------------------------


def test_the_configs_window_in_rescaled_units(tmp_path: Path) -> None:
    # units -1024 -160 40 239 240 3071 -161 -159; -160 is black, 240 white: 200 / 400 * 255 = 127.5
    expected = [0, 0, 128, 254, 255, 255, 0, 1]
    assert shades(tmp_path / "1", window=(40, 400), **UNITS) == expected
    # whatever window the file has
    own = {"WindowCenter": 7, "WindowWidth": 8, "VOILUTFunction": "SIGMOID"}
    assert shades(tmp_path / "2", window=(40, 400), **UNITS, **own) == expected


def test_the_files_window(tmp_path: Path) -> None:
    # LINEAR: black at 40 - 0.5 - 399 / 2 = -160, white at 239
    expected = [0, 0, 128, 255, 255, 255, 0, 1]
    own = {"WindowCenter": 40, "WindowWidth": 400}
    assert shades(tmp_path / "1", **UNITS, **own) == expected
    several = {"WindowCenter": [40, 600], "WindowWidth": [400, 2000], "VOILUTFunction": "LINEAR"}
    assert shades(tmp_path / "2", **UNITS, **several) == expected
    exact = {**own, "VOILUTFunction": "LINEAR_EXACT"}
    assert shades(tmp_path / "3", **UNITS, **exact) == [0, 0, 128, 254, 255, 255, 0, 1]
    threshold = {"WindowCenter": 40.5, "WindowWidth": 1}
    assert shades(tmp_path / "4", **UNITS, **threshold) == [0, 0, 0, 255, 255, 255, 0, 0]


def as_in_the_standard(level: int, centre: int, width: int, exact: bool) -> float:
    """DICOM PS3.3, C.11.2.1.2.1 and C.11.2.1.3.2, from 0 to 255."""
    if exact:
        if level <= centre - width / 2:
            return 0
        if level > centre + width / 2:
            return 255
        return ((level - centre) / width + 0.5) * 255
    if level <= centre - 0.5 - (width - 1) / 2:
        return 0
    if level > centre - 0.5 + (width - 1) / 2:
        return 255
    return ((level - (centre - 0.5)) / (width - 1) + 0.5) * 255


@given(st.integers(-2000, 4000), st.integers(1, 4000), st.booleans())
def test_windows_follow_the_standard(centre: int, width: int, exact: bool) -> None:
    header = Dataset()
    header.WindowCenter, header.WindowWidth = centre, width
    header.VOILUTFunction = "LINEAR_EXACT" if exact else "LINEAR"
    levels = [*range(-2100, 4100, 97), *range(centre - width, centre + width + 1, width // 9 + 1)]
    window = _own_window(header)
    assert window is not None
    for level, shade in zip(levels, to_8_bits(np.array(levels), window), strict=True):
        assert abs(as_in_the_standard(level, centre, width, exact) - shade) <= 0.5 + 1e-9


def test_without_a_window_the_full_range_of_the_stored_bits(tmp_path: Path) -> None:
    # 4095 is white; 864 / 4095 * 255 = 53.8, 1064: 66.26, 1263: 78.6, 1264: 78.7, 863: 53.7
    expected = [0, 54, 66, 79, 79, 255, 54, 54]
    assert shades(tmp_path / "1", BitsStored=12) == expected
    assert shades(tmp_path / "2", **UNITS) == expected
    assert shades(tmp_path / "3", **UNITS, WindowCenter=None, WindowWidth=None) == expected
    falling = {**UNITS, "RescaleSlope": -2}
    assert shades(tmp_path / "4", **falling) == [255, 201, 189, 176, 176, 0, 201, 201]
    signed = np.array([[-2048, -1], [0, 2047]] * 2, np.int16)
    assert shades(tmp_path / "5", signed, BitsStored=12)[:4] == [0, 127, 128, 255]
    eight = np.array([[0, 1], [77, 255]] * 2, np.uint8)
    assert shades(tmp_path / "6", eight)[:4] == [0, 1, 77, 255]


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    negative = {**UNITS, "PhotometricInterpretation": "MONOCHROME1"}
    windowed = shades(tmp_path / "1", window=(40, 400), **negative)
    assert windowed == [255, 255, 127, 1, 0, 0, 255, 254]
    assert shades(tmp_path / "2", **negative) == [255, 201, 189, 176, 176, 0, 201, 201]


def test_bits_that_are_not_stored_are_ignored(tmp_path: Path) -> None:
    overlaid = STORED | 0xA000  # old files keep drawings there
    assert shades(tmp_path, overlaid, BitsStored=12) == [0, 54, 66, 79, 79, 255, 54, 54]


@pytest.mark.parametrize(
    ("syntax", "dtype"), [(ImplicitVRLittleEndian, "<u2"), (ExplicitVRBigEndian, ">u2")]
)
def test_other_byte_orders(tmp_path: Path, syntax: UID, dtype: str) -> None:
    levels = STORED.astype(dtype)
    expected = [0, 0, 128, 254, 255, 255, 0, 1]
    assert shades(tmp_path, levels, window=(40, 400), syntax=syntax, **UNITS) == expected


def test_compressed_without_loss(tmp_path: Path) -> None:
    levels = np.repeat(STORED, 2, axis=1)
    path = save_dicom(tmp_path / "rle" / "a" / "x.dcm", levels, **UNITS)
    data = dcmread(path)
    data.compress(RLELossless)
    data.save_as(path)
    plain = save_dicom(tmp_path / "plain" / "a" / "x.dcm", levels, **UNITS)
    expected = found(tmp_path / "plain")
    assert (found(tmp_path / "rle") == expected).all()
    if not features.check("jpg_2000"):
        pytest.skip("this Pillow has no JPEG 2000")
    frame = BytesIO()
    Image.fromarray(levels << 4).save(frame, "JPEG2000", no_jp2=True)
    data = dcmread(plain)
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    data.BitsStored, data.HighBit, data.RescaleSlope = 16, 15, 1 / 16
    data.PixelData = encapsulate([frame.getvalue()])
    data["PixelData"].is_undefined_length = True
    (tmp_path / "jpeg" / "a").mkdir(parents=True)
    data.save_as(tmp_path / "jpeg" / "a" / "x.dcm")
    window = (40, 400)
    assert (
        found(tmp_path / "jpeg", window=window) == found(tmp_path / "plain", window=window)
    ).all()


def test_colour(tmp_path: Path) -> None:
    colours = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    tags = {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0}
    save_dicom(tmp_path / "a" / "x.dcm", colours, **tags)
    assert (found(tmp_path, window=(40, 400)) == colours).all()


def test_fitted_as_any_other_picture(tmp_path: Path) -> None:
    save_dicom(tmp_path / "a" / "x.DICOM", np.full((2, 4), 100, np.uint8))
    assert found(tmp_path, fit="pad")[:, 0, 0].tolist() == [0, 100, 100, 0]


# --- what is refused ------------------------------------------------------------------------------

TABLE = Dataset()
REFUSED = {
    "frames": ({"NumberOfFrames": 2}, "2 frames: save the one that counts"),
    "palette": ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR: save it as"),
    "table": ({"ModalityLUTSequence": [TABLE]}, "a table of levels"),
    "enhanced": ({"SharedFunctionalGroupsSequence": [TABLE]}, "an enhanced DICOM file"),
    "slope": ({"RescaleSlope": 0}, "RescaleSlope 0"),
    "intercept": ({"RescaleIntercept": "nan"}, "RescaleIntercept nan"),
    "sigmoid": (
        {"WindowCenter": 1, "WindowWidth": 2, "VOILUTFunction": "SIGMOID"},
        "a SIGMOID window of width 2: set data.window",
    ),
    "no width": ({"WindowCenter": 1, "WindowWidth": 0}, "a LINEAR window of width 0"),
    "short": ({"Rows": 400}, ""),
    "bomb": ({"Rows": 20_000, "Columns": 20_000}, "too many pixels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_not_one_picture(tmp_path: Path, name: str) -> None:
    tags, reason = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydicom doubts some of the values itself
        save_dicom(tmp_path / "a" / "x.dcm", np.zeros((4, 4), np.uint16), **tags)
    assert f"x.dcm: a broken image ({reason}" in refusal(tmp_path)
    save_dicom(tmp_path / "a" / "y.dcm", np.full((4, 4), 65_535, np.uint16))
    lines: list[str] = []
    assert (found(tmp_path, broken="skip", warn=lines.append) == 255).all()
    assert lines == [f"{tmp_path}: skipped 1 broken image: {Path('a', 'x.dcm')}"]


def test_32_bits_need_a_window(tmp_path: Path) -> None:
    levels = np.full((4, 4), 70_000, np.uint32)
    save_dicom(tmp_path / "a" / "x.dcm", levels)
    assert "32 bits per pixel, without a fixed range: set data.window" in refusal(tmp_path)
    assert (found(tmp_path, window=(70_000, 2)) == 128).all()


def test_deflated_files_could_be_bombs(tmp_path: Path) -> None:
    path = save_dicom(tmp_path / "a" / "x.dcm", np.zeros((4, 4), np.uint16))
    data = dcmread(path)
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    data.save_as(path, implicit_vr=False, little_endian=True)
    assert "a deflated DICOM file" in refusal(tmp_path)


def test_no_dicom_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for content in (b"", b"this is no picture", b"\0" * 128 + b"DICM"):
        (tmp_path / "a" / "x.dcm").write_bytes(content)
        assert "x.dcm: a broken image (" in refusal(tmp_path)
    Image.new("L", (4, 4)).save(tmp_path / "a" / "x.dcm", "PNG")
    assert "(not a DICOM file)" in refusal(tmp_path)


@pytest.mark.parametrize("broken", ["refuse", "skip"])
def test_what_is_installed_here_does_not_decide_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = save_dicom(tmp_path / "a" / "x.dcm", np.zeros((4, 4), np.uint16))
    data = dcmread(path)
    data.file_meta.TransferSyntaxUID = JPEGLosslessSV1
    data.PixelData = b"\xfe\xff\x00\xe0" + bytes(4) + b"\xfe\xff\x00\xe0" + bytes(4)
    data["PixelData"].is_undefined_length = True
    data.save_as(path, implicit_vr=False, little_endian=True)
    decoder = "pydicom.pixels.common.CoderBase.is_available"
    monkeypatch.setattr(decoder, property(lambda self: False))
    assert "x.dcm: pydicom needs a plugin to decode JPEG Lossless" in refusal(
        tmp_path, ConfigError, broken=broken
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "pydicom"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert refusal(tmp_path, ConfigError, broken=broken).endswith(
        f"x.dcm: DICOM needs pydicom: {install_command('dicom')}"
    )


def test_mutated_files_raise_nothing_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    levels = np.arange(576, dtype=np.uint16).reshape(24, 24)
    original = save_dicom(tmp_path / "x.dcm", levels, **UNITS, WindowCenter=40, WindowWidth=400)
    content = original.read_bytes()
    folder = class_folders(tmp_path / "data", a=1, b=2)
    for number in range(200):
        data = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            data[128 + int((len(data) - 128) * rng.random() ** 2)] = rng.randrange(256)
        (folder / "a" / f"{number}.dcm").write_bytes(data[: rng.randint(1, 5 * len(data))])
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays = read_folder(folder, Reading(8, broken="skip", warn=lines.append))
    assert len(lines) == 1
    assert 10 < len(arrays.train_labels) < 195
