"""More than 8 bits per pixel, pictures that are not square: against pixels worked out by hand."""

import struct
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dcfl.data.catalogue import load_dataset
from dcfl.data.readers.decoding import GreyRange, full_range, padded, to_8_bits
from dcfl.data.readers.folders import Reading, read_folder
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError, DatasetCorrupt
from tests.data.pictures import BLUE, GREEN, RED, class_folders, halves, save


def grey(levels: list[int] | np.ndarray, dtype: object = np.uint16) -> Image.Image:
    """A picture of 4x4 that starts with these levels, row by row, and goes on with the last."""
    values = np.asarray(levels, dtype)
    return Image.fromarray(
        np.append(values, np.repeat(values[-1:], 16 - len(values))).reshape(4, 4)
    )


def seen(folder: Path, name: str = "x.png", **reading: object) -> np.ndarray:
    """What becomes of the picture a/NAME, [4, 4, 3]."""
    class_folders(folder, b=2)
    assert [path.name for path in (folder / "a").iterdir()] == [name]
    return read_folder(folder, Reading(4, **reading)).train_pixels[0]  # type: ignore[arg-type]


def shades(folder: Path, image: Image.Image, name: str = "x.png", **reading: object) -> list[int]:
    save(folder / "a" / name, image)
    pixels = seen(folder, name, **reading)
    assert (pixels == pixels[..., :1]).all()
    return [int(shade) for shade in pixels[..., 0].ravel()]


def refusal(folder: Path, image: Image.Image, name: str, **reading: object) -> str:
    with pytest.raises(DatasetCorrupt) as caught:
        shades(folder, image, name, **reading)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the rule -------------------------------------------------------------------------------------


def by_fractions(level: float, black: float, white: float) -> int:
    """Rounded half up, without floating point."""
    share = (Fraction(level) - Fraction(black)) / (Fraction(white) - Fraction(black))
    return int(min(max(share, Fraction(0)), Fraction(1)) * 255 + Fraction(1, 2))


def test_every_level_of_16_bits() -> None:
    levels = np.arange(65536, dtype=np.uint16)
    assert (to_8_bits(levels, full_range(16, signed=False)) == (levels + 128.0) // 257).all()
    signed = (levels.astype(np.int32) - 32768).astype(np.int16)
    assert (to_8_bits(signed, full_range(16, signed=True)) == (levels + 128.0) // 257).all()
    eight = np.arange(256, dtype=np.uint8)
    assert (to_8_bits(eight, full_range(8, signed=False)) == eight).all()


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20),
    st.integers(-(2**16), 2**16),
    st.integers(1, 2**17),
)
def test_any_window_rounds_as_fractions_do(levels: list[int], centre: int, width: int) -> None:
    levels += [centre - width, centre, centre + width // 2, centre + width]
    black, white = GreyRange.around(centre, width)
    expected = [by_fractions(level, black, white) for level in levels]
    assert to_8_bits(np.array(levels), GreyRange(black, white)).tolist() == expected


def test_a_level_looks_the_same_whatever_is_beside_it(tmp_path: Path) -> None:
    dim = shades(tmp_path / "dim", grey([20_000, 20_100]))
    contrasting = shades(tmp_path / "contrasting", grey([20_000, 0, 65_535]))
    assert dim[0] == contrasting[0] == 78


# --- 16 bits and more in PNG and TIFF -------------------------------------------------------------

LEVELS = [0, 128, 129, 257, 385, 386, 25_700, 65_406, 65_407, 65_535]
SHADES = [0, 0, 1, 1, 1, 2, 100, 254, 255, 255]


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_16_bits_by_their_full_range(tmp_path: Path, name: str) -> None:
    assert shades(tmp_path, grey(LEVELS), name)[:10] == SHADES


def tiff(levels: np.ndarray, sample_format: int, order: str, photometric: int = 1) -> bytes:
    """A TIFF by hand, because Pillow writes no signed and no big-endian ones."""
    height, width = levels.shape
    bits = 8 * levels.dtype.itemsize
    pixels = levels.astype(levels.dtype.newbyteorder(order)).tobytes()
    entries = {256: width, 257: height, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1}
    entries |= {278: height, 279: len(pixels), 339: sample_format}
    table = struct.pack(order + "H", len(entries))
    for tag, value in sorted(entries.items()):
        table += struct.pack(order + "HHLL", tag, 4, 1, value)
    mark = b"II" if order == "<" else b"MM"
    head = mark + struct.pack(order + "HL", 42, 8 + len(pixels))
    return head + pixels + table + bytes(4)


def save_tiff(folder: Path, *content: object) -> None:
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "x.tif").write_bytes(tiff(*content))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("dtype", "sample_format"), [(np.uint16, 1), (np.int16, 2)])
def test_16_bit_tiffs_of_either_sign_and_byte_order(
    tmp_path: Path, order: str, dtype: type, sample_format: int
) -> None:
    levels = np.resize(np.array(LEVELS), (4, 4)) - (32_768 if sample_format == 2 else 0)
    save_tiff(tmp_path, levels.astype(dtype), sample_format, order)
    assert seen(tmp_path, "x.tif")[..., 0].ravel()[:10].tolist() == SHADES


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_a_window_instead_of_the_full_range(tmp_path: Path, name: str) -> None:
    # 1000 is black and 1510 white: half a shade for each level
    image = grey([0, 1000, 1001, 1002, 1003, 1100, 1510, 1511, 65_535])
    expected = [0, 0, 1, 1, 2, 50, 255, 255, 255]
    assert shades(tmp_path, image, name, window=(1255, 510))[:9] == expected


def test_8_bits_are_left_alone_by_a_window(tmp_path: Path) -> None:
    assert shades(tmp_path, grey([0, 7, 200], np.uint8), window=(40, 400))[:3] == [0, 7, 200]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bits_need_a_window(tmp_path: Path, dtype: type) -> None:
    image = grey(np.array([-2000, -160, 40, 239, 5000]), dtype)
    line = refusal(tmp_path / "without", image, "x.tif")
    assert "32 bits per pixel, without a fixed range: set data.window" in line
    # (40 + 160) / 400 * 255 = 127.5; (239 + 160) / 400 * 255 = 254.36
    found = shades(tmp_path / "with", image, "x.tif", window=(40, 400))
    assert found[:5] == [0, 0, 128, 254, 255]


def test_32_bits_without_a_sign(tmp_path: Path) -> None:
    levels = np.resize(np.array([0, 2**31, 2**32 - 1], np.uint32), (4, 4))
    save_tiff(tmp_path, levels, 1, "<")
    found = seen(tmp_path, "x.tif", window=(2.0**31, 2.0**32))[..., 0].ravel()
    assert found[:3].tolist() == [0, 128, 255]


def test_floats_that_are_no_numbers(tmp_path: Path) -> None:
    assert shades(
        tmp_path / "infinite", grey([np.inf, -np.inf, 0.5], np.float32), "x.tif", window=(0.5, 1)
    )[:3] == [255, 0, 128]
    image = grey([np.nan, 0], np.float32)
    assert "not numbers" in refusal(tmp_path / "nan", image, "x.tif", window=(0.5, 1))


def png_of_16_bit_colours(colours: np.ndarray) -> bytes:
    """By hand, because Pillow writes none."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">L", zlib.crc32(name + content))
        return struct.pack(">L", len(content)) + name + content + check

    height, width, _ = colours.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    head = struct.pack(">LLBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*both) for both in chunks)


def test_colours_with_16_bits_keep_their_high_bytes(tmp_path: Path) -> None:
    """Pillow cannot hold more."""
    (tmp_path / "a").mkdir()
    colours = np.resize(np.array([0x12FF, 0x3400, 0xFFFF]), (4, 4, 3))
    (tmp_path / "a" / "x.png").write_bytes(png_of_16_bit_colours(colours))
    assert (seen(tmp_path, window=(40, 400)) == (0x12, 0x34, 0xFF)).all()


def test_the_first_page_of_a_tiff_counts(tmp_path: Path) -> None:
    first, second = grey([25_700]), grey([65_535])
    save(tmp_path / "a" / "x.tif", first, save_all=True, append_images=[second, second])
    assert (seen(tmp_path, "x.tif") == 100).all()


# --- pictures that are not square -----------------------------------------------------------------


def pixels(folder: Path, image: Image.Image, **reading: object) -> np.ndarray:
    save(folder / "a" / "x.png", image)
    return seen(folder, **reading)


def test_pad_adds_black_borders(tmp_path: Path) -> None:
    wide = pixels(tmp_path / "wide", halves(RED, BLUE, (4, 2)), fit="pad")
    assert (wide[[0, 3]] == 0).all()
    assert (wide[1:3, :2] == RED).all()
    assert (wide[1:3, 2:] == BLUE).all()
    tall = pixels(tmp_path / "tall", Image.new("RGB", (20, 80), GREEN), fit="pad")
    # a column of one pixel: one black column on its left, two on its right
    assert (tall[:, 1] == GREEN).all()
    assert (tall[:, [0, 2, 3]] == 0).all()


def test_pad_keeps_squares_and_something_of_the_thinnest(tmp_path: Path) -> None:
    square = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    assert (pixels(tmp_path / "square", square, fit="pad") == np.asarray(square)).all()
    line = pixels(tmp_path / "line", Image.new("RGB", (500, 1), GREEN), fit="pad")
    assert (line == GREEN).all(axis=2).sum() == 4


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20))
def test_padding_is_even_and_proportional(width: int, height: int, size: int) -> None:
    shown = (np.asarray(padded(Image.new("RGB", (width, height), "white"), size)) == 255)[..., 0]
    columns, rows = shown.any(axis=0), shown.any(axis=1)
    assert max(columns.sum(), rows.sum()) == size
    for lit, side in ((columns, width), (rows, height)):
        assert abs(lit.sum() - max(size * side / max(width, height), 1)) <= 0.5
        left, right = lit.argmax(), lit[::-1].argmax()
        assert 0 <= right - left <= 1


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [(40.0,), (1.0, 2.0, 3.0), (40.0, 0.0), (float("nan"), 1.0)])
def test_windows_that_are_none(window: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"data.window (must be \[centre, width\]|= nan is out)"):
        DataSettings(window=window)
    with pytest.raises(ConfigError, match=r"data.window is for pictures of your own, not cifar10"):
        load_dataset(DataSettings(dataset="cifar10", window=(40.0, 400.0)))


def test_window_and_fit_are_part_of_the_caches_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    folder = class_folders(tmp_path / "data", b=2)
    save(folder / "a" / "x.png", Image.new("I;16", (8, 4), 1510))
    settings = {"dataset": f"folder:{folder}", "image_size": 4}

    def top_and_middle(**more: object) -> list[int]:
        train = load_dataset(DataSettings(**settings, **more)).train  # type: ignore[arg-type]
        return train.pixels[0, :2, 0, 0].tolist()

    for _ in range(2):  # written, then read
        assert top_and_middle() == [6, 6]
        assert top_and_middle(window=(1255.0, 510.0)) == [255, 255]
        assert top_and_middle(window=(1510.0, 510.0)) == [128, 128]
        assert top_and_middle(fit="pad") == [0, 6]
    assert len(list((tmp_path / "cache").iterdir())) == 4
