"""Pictures in folders: one's own class folders, one folder per site, and Tiny-ImageNet's layout."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from dcfl.data.arrays import Arrays
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing, require

Fit = Literal["resize", "crop"]
Broken = Literal["refuse", "skip"]
Warn = Callable[[str], object]

EXTENSIONS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
# Pillow knows forty more formats, some of which start other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
CHUNK = 128  # pictures per task


class Picture(NamedTuple):
    site: int
    label: int
    part: Literal["train", "test", "either"]  # "either": nobody has set a test set apart
    path: Path


class Decoding(NamedTuple):
    """How pictures become rows of pixels, and what happens to those that do not."""

    root: Path  # names are shown relative to it
    size: int
    fit: Fit | Literal["exact"]
    broken: Broken
    test_share: int
    warn: Warn


class Loaded(NamedTuple):
    pixels: NDArray[np.uint8]  # the training rows, then those for testing
    train: list[Picture]
    test: list[Picture]


# --- one's own pictures ---------------------------------------------------------------------------


def read_folder(
    folder: Path,
    size: int,
    fit: Fit = "resize",
    broken: Broken = "refuse",
    test_share: int = 5,
    warn: Warn = warnings.warn,
) -> Arrays:
    """Class folders, or `train` and `test` (or `val`) with class folders in them."""
    decoding = _decoding(folder, size, fit, broken, test_share, warn)
    train, test = _parts(folder)
    names = _class_folders(train)
    labels = {name: label for label, name in enumerate(names)}
    pictures = _pictures(train, labels, part="either" if test is None else "train")
    _require_every_class(names, pictures, train)
    if test is not None:
        pictures += _pictures(test, labels, part="test")
    loaded = _load(pictures, decoding)
    _require_every_class(names, loaded.train, train)
    return _arrays(loaded, names, test or folder)


def read_sites(
    folder: Path,
    size: int,
    fit: Fit = "resize",
    broken: Broken = "refuse",
    test_share: int = 5,
    warn: Warn = warnings.warn,
) -> Arrays:
    """One folder per client with class folders in it; `test` is the test set of all of them."""
    decoding = _decoding(folder, size, fit, broken, test_share, warn)
    sites, test = _site_folders(folder)
    names = sorted({name for site in sites for name in _subfolders(site)})
    _require_two(names, folder)
    labels = {name: label for label, name in enumerate(names)}
    part: Literal["train", "either"] = "either" if test is None else "train"
    pictures = [
        picture
        for number, site in enumerate(sites)
        for picture in _pictures(site, labels, part, number)
    ]
    _require_every_class(names, pictures, folder)
    if test is not None:
        pictures += _pictures(test, labels, part="test")
    loaded = _load(pictures, decoding)
    _require_every_class(names, loaded.train, folder)
    offsets = _site_offsets(loaded.train, sites)
    site_names = tuple(_shown(site.name) for site in sites)
    return _arrays(loaded, names, test or folder, site_names, offsets)


def folder_files(folder: Path) -> list[Path]:
    """Every picture below the folder, sorted: all that `read_folder` or `read_sites` may read."""
    _require_folder(folder)
    return sorted(_images(folder))


def _decoding(
    root: Path, size: int, fit: Fit, broken: Broken, test_share: int, warn: Warn
) -> Decoding:
    _require_folder(root)
    require(size >= 1, f"the size of the images must be at least 1 pixel, not {size}")
    require(fit in get_args(Fit), f"images can be fitted by resize or crop, not {fit!r}")
    require(broken in get_args(Broken), f"broken images: refuse or skip, not {broken!r}")
    require(test_share >= 2, f"every how many-th image is for testing: 2 or more, not {test_share}")
    return Decoding(root, size, fit, broken, test_share, warn)


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """Where the class folders for training are, and those for testing if they are set apart."""
    train = folder / "train"
    # "train" may also be the class next to "car" and "plane": it counts with folders in it.
    if train.is_dir() and _subfolders(train):
        for test in (folder / "test", folder / "val"):
            if test.is_dir() and _subfolders(test):
                return train, test
        if _subfolders(folder) == ["train"]:
            return train, None
    return folder, None


def _site_folders(folder: Path) -> tuple[list[Path], Path | None]:
    names = _subfolders(folder)
    for name in names:
        if not _subfolders(folder / name):
            raise DatasetCorrupt(
                f"{_shown(folder / name)}: no class folders in it; "
                f"sites are stored as SITE/CLASS/image"
            )
    sites = [folder / name for name in names if name != "test"]
    if not sites:
        raise DatasetCorrupt(f"{_shown(folder)}: no site folders in it")
    return sites, folder / "test" if "test" in names else None


def _site_offsets(train: Sequence[Picture], sites: Sequence[Path]) -> NDArray[np.int64]:
    counts = Counter(picture.site for picture in train)
    for number, site in enumerate(sites):
        if counts[number] < 2:
            raise DatasetCorrupt(
                f"{_shown(site)}: a site needs at least 2 images to train on, "
                f"this one has {counts[number]}"
            )
    return np.cumsum([0] + [counts[number] for number in range(len(sites))], dtype=np.int64)


def _class_folders(folder: Path) -> list[str]:
    names = _subfolders(folder)
    _require_two(names, folder)
    return names


def _pictures(
    folder: Path,
    labels: Mapping[str, int],
    part: Literal["train", "test", "either"],
    site: int = 0,
) -> list[Picture]:
    pictures = []
    for name in _subfolders(folder):
        if name not in labels:
            raise DatasetCorrupt(f"{_shown(folder / name)}: no images of this class to train on")
        images = sorted(_images(folder / name))
        pictures += [Picture(site, labels[name], part, path) for path in images]
    return pictures


def _arrays(
    loaded: Loaded,
    names: Sequence[str],
    tests: Path,
    sites: tuple[str, ...] = (),
    offsets: NDArray[np.int64] | None = None,
) -> Arrays:
    if not loaded.test:
        raise DatasetCorrupt(
            f"{_shown(tests)}: no image is left for testing; some class needs two or more"
        )
    cut = len(loaded.train)
    return Arrays(
        train_pixels=loaded.pixels[:cut],
        train_labels=_labels(loaded.train),
        test_pixels=loaded.pixels[cut:],
        test_labels=_labels(loaded.test),
        class_names=tuple(_shown(name) for name in names),
        site_names=sites,
        site_offsets=np.zeros(0, np.int64) if offsets is None else offsets,
    )


def _labels(pictures: Iterable[Picture]) -> NDArray[np.int64]:
    return np.fromiter((picture.label for picture in pictures), np.int64)


def _require_two(names: Sequence[str], folder: Path) -> None:
    if not names:
        raise DatasetCorrupt(f"{_shown(folder)}: no class folders in it")
    if len(names) == 1:
        raise DatasetCorrupt(
            f"{_shown(folder)}: only one class, {_shown(names[0])}; a classifier needs two"
        )


def _require_every_class(names: Sequence[str], pictures: Iterable[Picture], folder: Path) -> None:
    present = {picture.label for picture in pictures}
    for label, name in enumerate(names):
        if label not in present:
            raise DatasetCorrupt(f"{_shown(folder)}: class {_shown(name)} has no readable image")


# --- Tiny-ImageNet --------------------------------------------------------------------------------


def read_tiny_imagenet(folder: Path) -> Arrays:
    """The official layout; its validation images are the test set."""
    root = _tiny_root(folder)
    classes = _tiny_classes(root)
    labels = {wnid: label for label, wnid in enumerate(classes)}
    train = [
        Picture(0, label, "train", path)
        for wnid, label in labels.items()
        for path in _jpegs(root / "train" / wnid / "images")
    ]
    test = _tiny_validation(root, labels)
    for part, pictures in ((root / "train", train), (root / "val", test)):
        _require_every_class(classes, pictures, part)
    decoding = Decoding(root, 64, "exact", "refuse", 5, warnings.warn)
    return _arrays(_load(train + test, decoding), _tiny_names(root, classes), root)


def tiny_imagenet_files(folder: Path) -> list[Path]:
    """All files that `read_tiny_imagenet` reads, sorted."""
    root = _tiny_root(folder)
    lists = [root / name for name in TINY_LISTS]
    pictures = [
        path
        for images in [root / "train" / wnid / "images" for wnid in _tiny_classes(root)]
        for path in _jpegs(images)
    ]
    return sorted(lists + pictures + _jpegs(root / "val" / "images"))


TINY = "tiny-imagenet-200"
TINY_LISTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")


def _tiny_root(folder: Path) -> Path:
    get = "dcfl data get tiny-imagenet"
    inside = folder / TINY
    if not inside.is_dir() and not (folder.name == TINY or (folder / "wnids.txt").exists()):
        raise DatasetMissing(f"{_shown(inside)}: no such folder; {get}")
    root = inside if inside.is_dir() else folder
    for name in (*TINY_LISTS, "train", "val/images"):
        if not (root / name).exists():
            raise DatasetMissing(f"{_shown(root / name)} is missing; {get}")
    return root


def _tiny_classes(root: Path) -> list[str]:
    """The WordNet ids in the order that defines the labels."""
    path = root / "wnids.txt"
    classes = _text(path).split()
    for wnid, count in Counter(classes).items():
        # The ids become part of paths: nothing but an id will do.
        if not re.fullmatch(r"n[0-9]{8}", wnid) or count > 1:
            raise DatasetCorrupt(f"{_shown(path)}: {wnid[:40]!r} is no WordNet id, or there twice")
    _require_two(classes, path)
    return classes


def _tiny_names(root: Path, classes: Sequence[str]) -> list[str]:
    """What people call the classes; the id is added where two have the same name."""
    entries = (line.partition("\t") for line in _text(root / "words.txt").splitlines())
    words = {wnid: meaning.split(",")[0].strip() for wnid, _, meaning in entries}
    names = [words.get(wnid) or wnid for wnid in classes]
    often = Counter(names)
    return [
        name if often[name] == 1 else f"{name} ({wnid})"
        for name, wnid in zip(names, classes, strict=True)
    ]


def _tiny_validation(root: Path, labels: Mapping[str, int]) -> list[Picture]:
    path = root / "val" / "val_annotations.txt"
    images = {image.name: image for image in _jpegs(root / "val" / "images")}
    pictures = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in labels:
            raise DatasetCorrupt(f"{_shown(path)}, line {number}: unknown class {wnid[:40]!r}")
        image = images.pop(name, None)
        if image is None:
            raise DatasetCorrupt(
                f"{_shown(path)}, line {number}: {name[:80]!r} is not in val/images, or there twice"
            )
        pictures.append(Picture(0, labels[wnid], "test", image))
    return pictures


def _jpegs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DatasetCorrupt(f"{_shown(folder)}: no such folder")
    names = sorted(name for name in _listed(folder) if name.lower().endswith((".jpeg", ".jpg")))
    return [folder / name for name in names]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DatasetCorrupt(f"{_shown(path)}: not a text file") from error
    except OSError as error:
        raise DatasetCorrupt(f"{_shown(path)}: cannot be read ({error.strerror})") from error


# --- looking around -------------------------------------------------------------------------------


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise DatasetMissing(f"{_shown(folder)}: {what}")


def _listed(folder: Path) -> list[str]:
    """The names in a folder, without hidden ones."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise DatasetCorrupt(f"{_shown(folder)}: cannot be read ({error.strerror})") from error


def _subfolders(folder: Path) -> list[str]:
    return sorted(name for name in _listed(folder) if os.path.isdir(folder / name))


def _images(folder: Path) -> Iterator[Path]:
    """The pictures in a folder and below it, by their extension."""
    # Links are followed, but no folder is entered twice and none above this one: no cycles.
    entered = {os.path.realpath(above) for above in Path(os.path.abspath(folder)).parents}
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in entered:
            continue
        entered.add(real)
        for name in sorted(_listed(here)):
            if os.path.isdir(here / name):
                waiting.append(here / name)
            elif os.path.splitext(name)[1].lower() in EXTENSIONS:
                yield here / name


def _shown(path: Path | str) -> str:
    """A name fit for one line of text, whatever the file system allows in it."""
    text = str(path)
    return text if text.isprintable() else ascii(text)


# --- decoding -------------------------------------------------------------------------------------


def _load(pictures: list[Picture], decoding: Decoding) -> Loaded:
    train, test = _divide(pictures, decoding.test_share)
    planned = train + test
    pixels, reasons = _decode_all([picture.path for picture in planned], decoding)
    if reasons:
        decoding.warn(_skipped({planned[row].path: why for row, why in reasons.items()}, decoding))
        lost = {planned[row] for row in reasons}
        rows = {picture: row for row, picture in enumerate(planned)}
        # Divided anew, so that a class whose only training image is broken gets another one.
        train, test = _divide([p for p in pictures if p not in lost], decoding.test_share)
        pixels = pixels[[rows[picture] for picture in train + test]]
    return Loaded(pixels, train, test)


def _divide(pictures: Sequence[Picture], share: int) -> tuple[list[Picture], list[Picture]]:
    train: list[Picture] = []
    test: list[Picture] = []
    for (_, _, part), group in groupby(pictures, key=lambda picture: picture[:3]):
        if part == "either":
            for picture, held in _held_out(list(group), share):
                (test if held else train).append(picture)
        else:
            (test if part == "test" else train).extend(group)
    return train, test


def _held_out(group: list[Picture], share: int) -> Iterator[tuple[Picture, bool]]:
    few = 2 <= len(group) < share
    for number, picture in enumerate(group, start=1):
        yield picture, number == len(group) if few else number % share == 0


def _skipped(reasons: Mapping[Path, str], decoding: Decoding) -> str:
    paths = sorted(reasons)
    names = [_shown(os.path.relpath(path, decoding.root)) for path in paths[:3]]
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    images = "1 broken image" if len(paths) == 1 else f"{len(paths)} broken images"
    return f"{_shown(decoding.root)}: skipped {images}: {', '.join(names)}{more}"


def _decode_all(
    paths: Sequence[Path], decoding: Decoding
) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """A row of pixels per picture, and for those that are broken, the reason."""
    pixels = _empty(len(paths), decoding.size)
    starts = range(0, len(paths), CHUNK)
    work = partial(_decode_chunk, paths, pixels, decoding)
    reasons: dict[int, str] = {}
    Image.init()  # before the threads, which would all do it
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1))
    try:
        with _quiet_pillow():
            for found in pool.map(work, starts):
                if found and decoding.broken == "refuse":
                    row, reason = min(found.items())
                    choice = (
                        "" if decoding.fit == "exact" else '; data.broken = "skip" leaves it out'
                    )
                    raise DatasetCorrupt(f"{_shown(paths[row])}: a broken image ({reason}){choice}")
                reasons |= found
    finally:
        pool.shutdown(cancel_futures=True)
    return pixels, reasons


def _empty(count: int, size: int) -> NDArray[np.uint8]:
    try:
        return np.empty((count, size, size, 3), np.uint8)
    except (MemoryError, ValueError) as error:
        need = count * size * size * 3 / 2**30
        raise ConfigError(
            f"{count} images of {size}x{size} pixels need {need:.0f} GiB: choose a smaller size"
        ) from error


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Pillow warns about oddities inside files; what matters of that is an error here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def _decode_chunk(
    paths: Sequence[Path], pixels: NDArray[np.uint8], decoding: Decoding, start: int
) -> dict[int, str]:
    reasons = {}
    for row, path in enumerate(paths[start : start + CHUNK], start):
        try:
            pixels[row] = _decode(path, decoding)
        except Exception as error:  # decoders meet hostile bytes with every kind of exception
            # Not skipped even by choice: the picture may be fine, and the data must not depend
            # on who reads it.
            if isinstance(error, OSError) and error.errno is not None:
                reason = error.strerror or error
                raise DatasetCorrupt(f"{_shown(path)}: cannot be read ({reason})") from error
            reasons[row] = _reason(error)
    return reasons


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    return _shown(" ".join(str(error).split())[:120]) or type(error).__name__


def _decode(path: Path, decoding: Decoding) -> NDArray[np.uint8]:
    """[size, size, 3]"""
    if not path.is_file():  # a pipe would hang, a device would never end
        raise ValueError("not a file" if path.exists() else "a link to nowhere")
    size = decoding.size
    with path.open("rb") as stream, Image.open(stream, formats=FORMATS) as image:
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise Image.DecompressionBombError
        if decoding.fit == "exact" and image.size != (size, size):
            raise ValueError(f"{image.width}x{image.height} pixels instead of {size}x{size}")
        # A JPEG of a camera is decoded at a fraction of its size, still twice what is needed.
        image.draft(None, (2 * size, 2 * size))
        image.load()  # a TIFF turns itself now, and forgets its orientation
        ImageOps.exif_transpose(image, in_place=True)
        picture = _rgb(image)
    if decoding.fit == "crop":
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
    elif picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(picture)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_16_bits(np.asarray(image))
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # neither has 32 bits
        return _from_16_bits(np.asarray(image))
    if image.mode in ("I", "F"):
        raise ValueError("32 bits per pixel, without a fixed range: save it with 8 or 16")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _from_16_bits(levels: NDArray[np.integer]) -> Image.Image:
    rounded = (levels.astype(np.int64) + 128) // 257  # 65535 becomes 255
    return Image.fromarray(rounded.astype(np.uint8)).convert("RGB")
