import contextlib
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dcfl.data import DataSettings, load_dataset
from dcfl.data.readers import folders
from dcfl.data.readers import pictures as reader
from dcfl.data.readers.folders import (
    Reading,
    check_pictures,
    folder_files,
    folder_names,
    read_folder,
    read_sites,
)
from dcfl.data.readers.tiny_imagenet import TINY, read_tiny_imagenet, tiny_imagenet_files
from dcfl.errors import ClassNotAgreed, ConfigError, DatasetCorrupt, DatasetMissing, DCFLError
from tests.command_line import Call
from tests.data.pictures import (
    BLUE,
    GREEN,
    RED,
    WHITE,
    class_folders,
    halves,
    noise,
    save,
    tiny_imagenet,
)


def levels(pixels: np.ndarray) -> list[int]:
    return pixels[:, 0, 0, 0].tolist()


def one(folder: Path, image: Image.Image, name: str = "x.png", **options: object) -> np.ndarray:
    """What becomes of one image, as [8, 8, 3]."""
    fit = options.pop("fit", "resize")
    class_folders(folder, b=2)
    save(folder / "a" / name, image, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_folder(folder, Reading(8, fit)).train_pixels[0]


def refusal(error: type[DCFLError], folder: Path, **options: object) -> str:
    with pytest.raises(error) as caught:
        read_folder(folder, Reading(8, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- layouts --------------------------------------------------------------------------------------


def test_every_fifth_image_of_each_class_is_held_out(tmp_path: Path) -> None:
    arrays = read_folder(class_folders(tmp_path, cat=11, ant=5), Reading(8))
    assert arrays.class_names == ("ant", "cat")
    assert arrays.train_pixels.shape == (13, 8, 8, 3)
    assert arrays.train_pixels.dtype == np.uint8
    assert arrays.train_labels.dtype == np.int64
    assert np.bincount(arrays.train_labels).tolist() == [4, 9]
    assert np.bincount(arrays.test_labels).tolist() == [1, 2]
    # 0.png 1.png 10.png 2.png 3.png ...: the fifth is 3.png, the fourth picture that was made
    assert levels(arrays.test_pixels) == [16, 4, 9]
    assert not set(levels(arrays.train_pixels)) & set(levels(arrays.test_pixels))
    assert arrays.site_names == ()
    assert len(arrays.site_offsets) == 0


@pytest.mark.parametrize(("count", "held"), [(1, 0), (2, 1), (4, 1), (5, 1), (9, 1), (10, 2)])
def test_small_classes_keep_one_and_give_one(tmp_path: Path, count: int, held: int) -> None:
    arrays = read_folder(class_folders(tmp_path, a=count, b=9), Reading(8))
    assert (arrays.test_labels == 0).sum() == held
    assert (arrays.train_labels == 0).sum() == count - held


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test"), ("train", "val"), ("Train", "Test"), ("training", "validation")],
)
def test_a_test_set_that_is_set_apart(tmp_path: Path, train: str, test: str) -> None:
    class_folders(tmp_path / train, a=2, b=1)
    class_folders(tmp_path / test, b=3)
    class_folders(tmp_path, leaflets=1)
    remarks: list[str] = []
    arrays = read_folder(tmp_path, Reading(8, warn=remarks.append))
    ignored = "1 picture outside the class folders is ignored: leaflets/0.png"
    assert remarks == [f"{tmp_path}: {ignored}"]
    assert arrays.class_names == ("a", "b")
    assert arrays.train_labels.tolist() == [0, 0, 1]
    assert arrays.test_labels.tolist() == [1, 1, 1]


def test_which_folders_are_parts(tmp_path: Path) -> None:
    both = tmp_path / "both"
    class_folders(both / "train", a=1, b=1)
    class_folders(both / "val", a=2)
    class_folders(both / "test", b=1)
    with pytest.warns(UserWarning, match=r"2 pictures outside .* ignored: val/a/0\.png"):
        arrays = read_folder(both, Reading(8))
    assert arrays.test_labels.tolist() == [1]  # test comes before val
    class_folders(tmp_path / "alone" / "train", a=5, b=5)
    assert read_folder(tmp_path / "alone", Reading(8)).class_names == ("a", "b")
    vehicles = class_folders(tmp_path / "vehicles", car=3, test=3, train=3)
    assert read_folder(vehicles, Reading(8)).class_names == ("car", "test", "train")


def test_other_files_and_hidden_ones_are_ignored_and_subfolders_are_not(tmp_path: Path) -> None:
    class_folders(tmp_path, a=2, b=2)
    save(tmp_path / "loose.png", 99)
    save(tmp_path / "a" / "deeper" / "z.JPG", 99)
    save(tmp_path / "a" / ".hidden.png", 99)
    save(tmp_path / ".thumbnails" / "c.png", 99)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / ".DS_Store").write_bytes(b"\0")
    with pytest.warns(UserWarning, match=r"1 picture outside .* is ignored: loose\.png"):
        arrays = read_folder(tmp_path, Reading(8))
    assert arrays.class_names == ("a", "b")
    assert len(arrays.train_labels) + len(arrays.test_labels) == 5
    found = [path.relative_to(tmp_path).as_posix() for path in folder_files(tmp_path)]
    assert found == ["a/0.png", "a/1.png", "a/deeper/z.JPG", "b/0.png", "b/1.png", "loose.png"]


def test_pictures_outside_class_folders_are_counted(tmp_path: Path) -> None:
    """Classes with patients, read as sites: the patients are the classes, and loose pictures are
    left out."""

    def remarks(read: Callable[[Path, Reading], object]) -> list[str]:
        said: list[str] = []
        read(tmp_path, Reading(8, warn=said.append))
        return [remark for remark in said if "ignored" in remark]

    for name in ("bar", "disc"):
        class_folders(tmp_path / name, **{f"{name}_a": 3, f"{name}_b": 3})
    assert remarks(read_folder) == remarks(read_sites) == []
    save(tmp_path / "bar" / "00.png", Image.new("L", (8, 8), 1))
    save(tmp_path / "bar" / ".hidden.png", 3)
    assert remarks(read_folder) == []
    assert remarks(read_sites) == [
        f"{tmp_path}: 1 picture outside the class folders is ignored: bar/00.png"
    ]
    class_folders(tmp_path, disc=4)
    assert remarks(read_sites) == [
        f"{tmp_path}: 5 pictures outside the class folders are ignored: "
        "bar/00.png, disc/0.png, disc/1.png and 2 more"
    ]
    save(tmp_path / "loose.png", 5)
    assert remarks(read_folder) == [
        f"{tmp_path}: 1 picture outside the class folders is ignored: loose.png"
    ]


def test_links_are_followed_and_cycles_end(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "data", a=2, b=2)
    elsewhere = save(tmp_path / "elsewhere" / "x.png", 77)
    (folder / "a" / "link.png").symlink_to(elsewhere)
    (folder / "c").symlink_to(elsewhere.parent)
    (folder / "a" / "up").symlink_to(folder)
    (folder / "a" / "self").symlink_to(folder / "a")
    (folder / "b" / "round").symlink_to(folder / "b" / "round")
    arrays = read_folder(folder, Reading(8))
    assert arrays.class_names == ("a", "b", "c")
    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    assert np.bincount(labels).tolist() == [3, 2, 1]
    assert len(folder_files(folder)) == 6
    (folder / "loop").symlink_to(folder)
    assert "class loop has no readable image" in refusal(DatasetCorrupt, folder)


# --- what is in the files -------------------------------------------------------------------------


def test_modes_become_rgb(tmp_path: Path) -> None:
    red = Image.new("RGB", (20, 10), RED)
    cases = {
        "L": (Image.new("L", (20, 10), 100), "x.png", (100,) * 3),
        "1": (Image.new("1", (20, 10), 1), "x.png", WHITE),
        "P": (red.convert("P"), "x.gif", RED),
        "RGB": (red, "x.ppm", RED),
        "BMP": (red, "x.BMP", RED),
        "WEBP": (red, "x.webp", RED),
        "CMYK": (red.convert("CMYK"), "x.tif", RED),
        "RGBA": (Image.new("RGBA", (20, 10), (255, 0, 0, 255)), "x.png", RED),
        "clear": (Image.new("RGBA", (20, 10), (255, 0, 0, 0)), "x.png", WHITE),
        "half": (Image.new("RGBA", (20, 10), (0, 0, 0, 128)), "x.webp", (127,) * 3),
        "LA": (Image.new("LA", (20, 10), (0, 0)), "x.png", WHITE),
        "I;16": (Image.new("I;16", (20, 10), 200 * 257), "x.png", (200,) * 3),
        "I;16 TIFF": (Image.new("I;16", (20, 10), 65535), "x.tiff", WHITE),
        "dark": (Image.new("I;16", (20, 10), 255), "x.png", (1,) * 3),
    }
    for name, (image, file, colour) in cases.items():
        lossless = {"lossless": True} if file.endswith("webp") else {}
        pixels = one(tmp_path / name, image, file, **lossless)
        assert np.abs(pixels.astype(int) - colour).max() <= 1, name
        assert pixels.shape == (8, 8, 3)


def test_a_transparent_palette_entry_and_a_transparent_colour_are_white(tmp_path: Path) -> None:
    palette = halves(RED, GREEN).convert("P", palette=Image.Palette.ADAPTIVE, colors=2)
    pixels = one(tmp_path / "P", palette, transparency=palette.getpixel((0, 0)))
    assert pixels[4, 0].tolist() == [255, 255, 255]
    assert pixels[4, 7].tolist() == [0, 255, 0]
    bytes_ = one(tmp_path / "bytes", palette, transparency=bytes([0, 0]))
    assert (bytes_ == 255).all()
    colour = one(tmp_path / "RGB", halves(RED, GREEN), transparency=RED)
    assert colour[4, 0].tolist() == [255, 255, 255]


def test_a_16_bit_pgm_inside_a_ppm(tmp_path: Path) -> None:
    class_folders(tmp_path, b=2)
    (tmp_path / "a").mkdir()
    level = (100 * 257).to_bytes(2, "big")
    (tmp_path / "a" / "x.ppm").write_bytes(b"P5 4 4 65535\n" + level * 16)
    assert (read_folder(tmp_path, Reading(8)).train_pixels[0] == 100).all()


@pytest.mark.parametrize("file", ["x.jpg", "x.png", "x.tif", "x.webp"])
def test_exif_orientation_is_applied(tmp_path: Path, file: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: what is left comes up
    pixels = one(tmp_path, halves(RED, BLUE), file, exif=exif).astype(int)
    assert np.abs(pixels[0, 4] - RED).max() < 60
    assert np.abs(pixels[7, 4] - BLUE).max() < 60


def test_resize_squeezes_and_crop_cuts_the_centre(tmp_path: Path) -> None:
    wide = Image.new("RGB", (64, 16), RED)
    wide.paste(GREEN, (20, 0, 44, 16))  # a little more than the square in the middle
    squeezed = one(tmp_path / "resize", wide)
    assert squeezed[4, 0].tolist() == list(RED)
    assert squeezed[4, 3, 1] > 128
    cut = one(tmp_path / "crop", wide, fit="crop")
    assert (cut == GREEN).all()
    tall = one(tmp_path / "tall", wide.transpose(Image.Transpose.ROTATE_90), fit="crop")
    assert (tall == GREEN).all()


def test_large_photographs_look_the_same_when_decoded_at_a_fraction(tmp_path: Path) -> None:
    photo = Image.radial_gradient("L").resize((1600, 800)).convert("RGB")
    pixels = one(tmp_path, photo, "x.jpg", fit="crop").astype(int)
    whole = np.asarray(photo.crop((400, 0, 1200, 800)).resize((8, 8), Image.Resampling.BICUBIC))
    assert np.abs(pixels - whole).max() <= 4


def test_only_the_first_frame_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), BLUE)]
    first = Image.new("RGB", (8, 8), RED)
    assert (one(tmp_path, first, "x.gif", save_all=True, append_images=frames) == RED).all()


def test_two_photographs_in_one_file_as_telephones_make_them(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (64, 64), RED), Image.new("RGB", (64, 64), BLUE)
    stream = BytesIO()
    first.save(stream, "MPO", save_all=True, append_images=[second])
    class_folders(tmp_path, b=2)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(stream.getvalue())
    assert np.abs(read_folder(tmp_path, Reading(8)).train_pixels[0].astype(int) - RED).max() <= 2


# --- what is wrong with them ----------------------------------------------------------------------


def truncated_png(path: Path) -> None:
    save(path, noise(np.random.default_rng(0)))
    path.write_bytes(path.read_bytes()[:-900])


def text(path: Path) -> None:
    path.write_text("this is no picture")


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere.png")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def bomb(path: Path) -> None:
    """A few kilobytes that claim 30,000 x 5,000 pixels: between Pillow's warning and its error."""
    save(path, Image.new("1", (30_000, 5_000)), compress_level=9)


def postscript(path: Path) -> None:
    """Pillow would start Ghostscript for it."""
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nquit\n")


BROKEN = [truncated_png, text, dangling, pipe, bomb, postscript]


@pytest.mark.parametrize("damage", BROKEN, ids=lambda damage: damage.__name__)
def test_broken_files_are_refused_or_skipped_by_name(tmp_path: Path, damage) -> None:
    class_folders(tmp_path, a=6, b=6)
    damage(tmp_path / "a" / "bad.png")
    assert "bad.png: a broken image (" in refusal(DatasetCorrupt, tmp_path)
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays = read_folder(tmp_path, Reading(8, broken="skip", warn=lines.append))
    assert lines == [f"{tmp_path}: skipped 1 broken image: {Path('a', 'bad.png')}"]
    shutil.move(tmp_path / "a" / "bad.png", tmp_path / "bad.png")
    with pytest.warns(UserWarning, match=r"is ignored: bad\.png"):
        whole = read_folder(tmp_path, Reading(8))
    assert np.array_equal(arrays.train_pixels, whole.train_pixels)
    assert np.array_equal(arrays.test_labels, whole.test_labels)


def test_one_line_for_many_broken_files(tmp_path: Path) -> None:
    class_folders(tmp_path, a=3, b=3)
    for number in range(300):
        text(tmp_path / "a" / f"x{number:03}.png")
    lines: list[str] = []
    arrays = read_folder(tmp_path, Reading(8, broken="skip", warn=lines.append))
    names = ", ".join(str(Path("a", f"x00{number}.png")) for number in range(3))
    assert lines == [f"{tmp_path}: skipped 300 broken images: {names} and 297 more"]
    assert len(arrays.train_labels) == 4
    assert "x000.png" in refusal(DatasetCorrupt, tmp_path)


def test_a_class_keeps_a_training_image_when_others_are_broken(tmp_path: Path) -> None:
    class_folders(tmp_path, a=2, b=9)
    text(tmp_path / "a" / "0.png")
    arrays = read_folder(tmp_path, Reading(8, broken="skip", warn=lambda _: None))
    assert (arrays.train_labels == 0).sum() == 1
    text(tmp_path / "a" / "1.png")
    lost = refusal(DatasetCorrupt, tmp_path, broken="skip", warn=lambda _: None)
    assert "class a has no readable image" in lost


def test_unreadable_files_are_refused_even_when_broken_ones_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path, a=2, b=2)
    opened = Path.open

    def guarded(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "1.png":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", guarded)
    for broken in ("refuse", "skip"):
        line = refusal(DatasetCorrupt, tmp_path, broken=broken)
        assert line.endswith("1.png: cannot be read (Permission denied)")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root reads everything")
def test_unreadable_folders(tmp_path: Path) -> None:
    class_folders(tmp_path, a=2, b=2)
    (tmp_path / "a").chmod(0)
    try:
        assert "Permission denied" in refusal(DatasetCorrupt, tmp_path)
    finally:
        (tmp_path / "a").chmod(0o755)


def test_folders_that_are_no_data_set(tmp_path: Path) -> None:
    assert refusal(DatasetMissing, tmp_path / "no").endswith("no: no such folder")
    assert refusal(DatasetMissing, save(tmp_path / "x.png", 1)).endswith("x.png: not a folder")
    assert "no class folders" in refusal(DatasetCorrupt, tmp_path)
    class_folders(tmp_path, cat=3)
    assert "only one class, cat; a classifier needs two" in refusal(DatasetCorrupt, tmp_path)
    class_folders(tmp_path, dog=0)
    assert "class dog has no readable image" in refusal(DatasetCorrupt, tmp_path)


def test_test_sets_that_are_none(tmp_path: Path) -> None:
    assert "left for testing" in refusal(DatasetCorrupt, class_folders(tmp_path / "1", a=1, b=1))
    class_folders(tmp_path / "2" / "train", a=1, b=1)
    class_folders(tmp_path / "2" / "test", c=1)
    line = refusal(ClassNotAgreed, tmp_path / "2")
    assert line.endswith("c: no images of this class to train on; known: a, b")
    class_folders(tmp_path / "3" / "train", a=1, b=1)
    class_folders(tmp_path / "3" / "test", a=0)
    assert "left for testing" in refusal(DatasetCorrupt, tmp_path / "3")


@pytest.mark.parametrize("wrong", [{"fit": "stretch"}, {"broken": "hide"}])
def test_settings_that_cannot_be(tmp_path: Path, wrong: dict[str, object]) -> None:
    class_folders(tmp_path, a=2, b=2)
    with pytest.raises(ConfigError):
        read_folder(tmp_path, Reading(**{"size": 8, **wrong}))  # type: ignore[arg-type]


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose a smaller size"):
        read_folder(class_folders(tmp_path, a=2, b=2), Reading(2**31))


@pytest.mark.skipif(os.name == "nt", reason="no such names there")
def test_odd_names_stay_on_one_line(tmp_path: Path) -> None:
    class_folders(tmp_path, a=2, **{"b\nc": 2})
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    shutil.copy(tmp_path / "a" / "0.png", os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe/0.png"))
    names = read_folder(tmp_path, Reading(8)).class_names
    assert len(names) == 3
    assert all(name.isprintable() for name in names)
    text(tmp_path / "b\nc" / "0.png")
    assert "broken" in refusal(DatasetCorrupt, tmp_path)


def test_mutated_files_raise_nothing_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    picture = noise(np.random.default_rng(0)).resize((24, 24))
    folder = class_folders(tmp_path, a=1, b=2)
    for kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm"):
        stream = BytesIO()
        picture.save(stream, kind)
        for number in range(40):
            data = bytearray(stream.getvalue())
            for _ in range(rng.randint(1, 4)):
                # headers more often than pixels
                data[int(len(data) * rng.random() ** 2)] = rng.randrange(256)
            (folder / "a" / f"{number}.{kind}").write_bytes(data[: rng.randint(1, 5 * len(data))])
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays = read_folder(folder, Reading(8, broken="skip", warn=lines.append))
    assert len(lines) == 1
    assert 50 < len(arrays.train_labels) < 200  # many a change of pixels goes unnoticed


# --- sites ----------------------------------------------------------------------------------------


def sites(folder: Path) -> Path:
    class_folders(folder / "lyon", cat=5, dog=1)
    class_folders(folder / "bonn", dog=10, eel=0)
    class_folders(folder / "rome", ant=2, eel=3)
    return folder


def test_sites_own_rows(tmp_path: Path) -> None:
    arrays = read_sites(sites(tmp_path), Reading(8))
    assert arrays.site_names == ("bonn", "lyon", "rome")
    assert arrays.class_names == ("ant", "cat", "dog", "eel")
    assert arrays.site_offsets.tolist() == [0, 8, 13, 16]
    assert arrays.site_offsets.dtype == np.int64
    assert arrays.train_labels.tolist() == [2] * 8 + [1] * 4 + [2] + [0] + [3] * 2
    assert np.bincount(arrays.test_labels).tolist() == [1, 1, 2, 1]
    assert len(folder_files(tmp_path)) == 21


def test_sites_with_a_common_test_set(tmp_path: Path) -> None:
    class_folders(sites(tmp_path) / "test", cat=2, dog=1)
    arrays = read_sites(tmp_path, Reading(8))
    assert arrays.site_names == ("bonn", "lyon", "rome")
    assert arrays.site_offsets.tolist() == [0, 10, 16, 21]
    assert arrays.test_labels.tolist() == [1, 1, 2]


def site_refusal(folder: Path) -> str:
    with pytest.raises(DatasetCorrupt) as caught:
        read_sites(folder, Reading(8))
    return str(caught.value)


def test_sites_that_are_none(tmp_path: Path) -> None:
    assert "no site folders" in site_refusal(tmp_path)
    class_folders(tmp_path / "flat", cat=3, dog=3)
    assert "SITE/CLASS/image" in site_refusal(tmp_path / "flat")
    class_folders(tmp_path / "small" / "a", cat=2, dog=2)
    class_folders(tmp_path / "small" / "b", cat=2)
    assert "at least 2 images to train on, this one has 1" in site_refusal(tmp_path / "small")
    class_folders(tmp_path / "single" / "a", cat=9)
    assert "only one class, cat" in site_refusal(tmp_path / "single")
    class_folders(sites(tmp_path / "test") / "test", fox=1)
    assert "fox: no images of this class" in site_refusal(tmp_path / "test")
    class_folders(sites(tmp_path / "empty") / "rome", yak=0)
    assert "class yak has no readable image" in site_refusal(tmp_path / "empty")
    with pytest.raises(DatasetMissing, match="no such folder"):
        read_sites(tmp_path / "nowhere", Reading(8))


# --- Tiny-ImageNet --------------------------------------------------------------------------------


def test_tiny_imagenet_in_the_order_of_its_list(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path)
    arrays = read_tiny_imagenet(tmp_path)
    assert arrays.train_pixels.shape == (12, 64, 64, 3)
    assert arrays.train_labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert arrays.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert arrays.class_names == ("crane (n90000000)", "crane (n89999993)", "goldfish")
    with Image.open(root / "train" / "n90000000" / "images" / "n90000000_0.JPEG") as first:
        assert np.array_equal(arrays.train_pixels[0], np.asarray(first))
    files = tiny_imagenet_files(tmp_path)
    assert files == sorted(files)
    assert len(files) == 12 + 6 + 3


def test_tiny_imagenet_by_its_own_folder_under_any_name_and_in_grey(tmp_path: Path) -> None:
    root = tiny_imagenet(tmp_path).rename(tmp_path / "tiny")
    save(root / "val" / "images" / "val_0.JPEG", Image.linear_gradient("L").resize((64, 64)))
    arrays = read_tiny_imagenet(root)
    assert len(arrays.train_labels) == 12
    assert (arrays.test_pixels[0] == arrays.test_pixels[0][..., :1]).all()
    assert arrays.test_pixels[0].std() > 50


@pytest.mark.parametrize(
    "missing", ["wnids.txt", "words.txt", "val/val_annotations.txt", "val/images", "train", ""]
)
def test_tiny_imagenet_missing(tmp_path: Path, missing: str) -> None:
    path = tiny_imagenet(tmp_path) / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for read in (read_tiny_imagenet, tiny_imagenet_files):
        with pytest.raises(DatasetMissing) as caught:
            read(tmp_path)
        line = str(caught.value)
        assert line.startswith(str(path))
        assert line.endswith("dcfl data get tiny-imagenet")
        assert "\n" not in line


def append(path: Path, line: str) -> None:
    path.write_text(path.read_text() + line)


TINY_DAMAGE = {
    "an image that is not there": (
        lambda root: (root / "val" / "images" / "val_1.JPEG").unlink(),
        "val_annotations.txt, line 3: 'val_1.JPEG' is not in val/images",
    ),
    "annotated twice": (
        lambda root: append(root / "val" / "val_annotations.txt", "val_0.JPEG\tn90000000\n"),
        "line 7: 'val_0.JPEG'",
    ),
    "an unknown class": (
        lambda root: append(root / "val" / "val_annotations.txt", "val_9.JPEG\tn1\n"),
        "line 7: unknown class 'n1'",
    ),
    "a path instead of a class": (
        lambda root: append(root / "wnids.txt", "../../etc\n"),
        "'../../etc' is no WordNet id",
    ),
    "a class twice": (lambda root: append(root / "wnids.txt", "n90000000\n"), "wnids.txt"),
    "a class without a folder": (
        lambda root: append(root / "wnids.txt", "n00000001\n"),
        "n00000001",
    ),
    "a class without images": (
        lambda root: [p.unlink() for p in (root / "train" / "n90000000" / "images").iterdir()],
        "class n90000000 has no readable image",
    ),
    "a class without validation images": (
        lambda root: (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn90000000\n"),
        "class n89999993 has no readable image",
    ),
    "no text": (lambda root: (root / "words.txt").write_bytes(b"\xff\xfe\0"), "not a text file"),
    "another size": (
        lambda root: save(root / "val" / "images" / "val_0.JPEG", 7),
        "val_0.JPEG: a broken image (8x8 pixels instead of 64x64)",
    ),
    "a truncated image": (
        lambda root: os.truncate(root / "val" / "images" / "val_0.JPEG", 900),
        "val_0.JPEG: a broken image (",
    ),
}


@pytest.mark.parametrize("name", TINY_DAMAGE)
def test_tiny_imagenet_damaged(tmp_path: Path, name: str) -> None:
    damage, said = TINY_DAMAGE[name]
    damage(tiny_imagenet(tmp_path))
    with pytest.raises(DatasetCorrupt) as caught:
        read_tiny_imagenet(tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif("DCFL_DATA" not in os.environ, reason="DCFL_DATA names no folder")
def test_the_real_tiny_imagenet() -> None:
    data = Path(os.environ["DCFL_DATA"])
    if not (data / TINY).is_dir():
        pytest.skip("no tiny-imagenet-200 in DCFL_DATA")
    real = read_tiny_imagenet(data)
    assert len(real.class_names) == len(set(real.class_names)) == 200
    assert real.class_names[:2] == ("Egyptian cat", "reel")
    assert real.train_pixels.shape[1:] == real.test_pixels.shape[1:] == (64, 64, 3)
    for labels in (real.train_labels, real.test_labels):
        assert len({*np.bincount(labels).tolist()}) == 1
    means = real.train_pixels.reshape(-1, 3).mean(axis=0) / 255
    assert np.abs(means - (0.4802, 0.4481, 0.3975)).max() < 0.02
    grey = (real.test_pixels == real.test_pixels[..., :1]).all(axis=(1, 2, 3))
    assert 0 < grey.mean() < 0.1


# --- names of parts ----------------------------------------------------------------------------


def test_a_site_may_have_parts_of_its_own(tmp_path: Path) -> None:
    for site in ("north", "south"):
        class_folders(tmp_path / site / "train", a=3, b=2)
        class_folders(tmp_path / site / "test", a=1, b=1)
    arrays = read_sites(tmp_path, Reading(8))
    assert arrays.class_names == ("a", "b")
    assert arrays.site_names == ("north", "south")
    assert arrays.site_offsets.tolist() == [0, 5, 10]
    assert len(arrays.test_labels) == 4


def test_an_empty_class_is_part_of_a_folders_identity(tmp_path: Path) -> None:
    class_folders(tmp_path, a=2, b=2)
    before = folder_names(tmp_path)
    (tmp_path / "zebra").mkdir()
    assert before == ["a", "b"]
    assert folder_names(tmp_path) == ["a", "b", "zebra"]


# --- a look before training ----------------------------------------------------------------------

Folders = dict[str, list[bool]]  # which pictures of a class are sound


@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(st.booleans(), max_size=4)),
    st.sampled_from(["{name}", "train/{name}", "test/{name}"]),
)
def test_classes_are_counted_and_broken_pictures_named(
    tmp_path_factory: pytest.TempPathFactory, classes: Folders, form: str
) -> None:
    root = tmp_path_factory.mktemp("pictures")
    (root / "train" / "a").mkdir(parents=True) if "/" in form else None
    broken = set()
    for name, pictures in classes.items():
        folder = root / form.format(name=name)
        folder.mkdir(parents=True, exist_ok=True)
        for number, sound in enumerate(pictures):
            path = folder / f"{number}.png"
            Image.new("L", (5, 4)).save(path) if sound else path.write_bytes(b"no picture")
            broken |= set() if sound else {path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "_BATCH", 3)
        found = check_pictures(root)
    counts = {name: len(pictures) for name, pictures in classes.items()}
    assert found.classes == ({"a": 0, **counts} if "/" in form else counts)
    assert set(found.broken) == broken
    assert found.total == sum(counts.values())


def test_of_many_broken_pictures_the_first_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(5):
        (tmp_path / "a" / f"{number}.png").touch()
    told = check_pictures(tmp_path).broken_text
    assert told.startswith("5 of 5: a/0.png (")
    assert told.endswith(" and 2 more")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match="no such folder"):
        check_pictures(tmp_path / "nowhere")


# --- what is no folder of pictures ----------------------------------------------------------------


def test_a_folder_of_everything_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even by who may read all of it."""

    def readable(folder: Path) -> list[str]:
        with contextlib.suppress(OSError):
            return os.listdir(folder)
        return []

    monkeypatch.setattr(reader, "listed", readable)
    began = time.monotonic()
    with pytest.raises(DatasetCorrupt, match=r"^/.*: too many files"):
        load_dataset(DataSettings(dataset="folder:/"))
    assert time.monotonic() - began < 20, "it has millions of files"


@pytest.mark.parametrize(("pictures", "others", "fits"), [(1, 15, True), (1, 16, False)])
def test_pictures_are_not_looked_for_among_many_other_files(
    pictures: int, others: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MOST_OTHERS", 5)
    for number in range(others):
        (tmp_path / f"b{number}.txt").touch()
    for number in range(pictures):
        (tmp_path / f"a{number}.png").touch()
    if fits:
        assert len(folder_files(tmp_path)) == pictures
        return
    with pytest.raises(DatasetCorrupt, match="choose a folder that has a folder of pictures"):
        folder_files(tmp_path)


def test_folders_of_patients_are_no_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are seen before the first picture is."""
    monkeypatch.setattr(reader, "MOST_OTHERS", 5)
    for number in range(60):
        save(tmp_path / f"patient_{number}" / "1.png", number)
    assert len(folder_files(tmp_path)) == 60


def test_more_pictures_than_anybody_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_ENTRIES", 5)
    class_folders(tmp_path, a=2, b=2)
    with pytest.raises(DatasetCorrupt, match="too many files and folders"):
        folder_files(tmp_path)


def test_data_check_names_all_broken_pictures_at_once(tmp_path: Path, cli: Call) -> None:
    class_folders(tmp_path / "x", cat=6, dog=6)
    for name in ("cat/1.png", "dog/0.png", "dog/5.png"):
        (tmp_path / "x" / name).write_bytes(b"no picture")
    code, out, err = cli("data", "check", f"data.dataset=folder:{tmp_path / 'x'}")
    assert code == 2
    assert [Path(line.split()[1]).name for line in out.splitlines()] == ["1.png", "0.png", "5.png"]
    assert err.startswith("dcfl: 3 of 12 pictures are broken: ")
    assert err.count("\n") == 1
