"""Image files: found by their extensions, decoded by Pillow or pydicom; broken ones are named."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dcfl.data.readers.arrays import Arrays, Pixels
from dcfl.data.readers.decoding import Fit, GreyRange, fitted, read_by_pillow
from dcfl.data.readers.dicom import DICOM_EXTENSIONS, read_dicom
from dcfl.data.splits.grouping import (
    COMMON,
    SUBFOLDER,
    PictureFile,
    come_in_groups,
    divide,
    group_numbers,
)
from dcfl.errors import (
    BrokenPicture,
    ConfigError,
    DatasetCorrupt,
    DatasetMissing,
    DCFLError,
    require,
)
from dcfl.system.memory import available_bytes
from dcfl.system.wording import printable, some

Broken = Literal["refuse", "skip"]
Warn = Callable[[str], object]

PILLOW_EXTENSIONS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
EXTENSIONS = PILLOW_EXTENSIONS | DICOM_EXTENSIONS
CHUNK = 128  # pictures per task
LARGEST_PICTURE = 1_000_000_000  # bytes: more than all pixels that are allowed, uncompressed
MOST_ENTRIES = 2_000_000  # in a folder and below it
MOST_OTHERS = 50_000  # of them neither pictures nor folders, and ten more for each picture


@dataclass(frozen=True)
class Reading:
    size: int
    fit: Fit | Literal["exact"] = "resize"
    broken: Broken = "refuse"
    warn: Warn = warnings.warn
    # Agreed beforehand: a folder may lack some of them but have no others.
    class_names: Sequence[str] = ()
    window: Sequence[float] = ()  # centre and width; none: what suits the file
    group: str = SUBFOLDER  # which pictures belong together, as data.group says it
    # Training never skips a file that the disk refuses: the data must not depend on who reads it.
    unreadable: Broken = "refuse"

    def __post_init__(self) -> None:
        require(
            self.fit in (*get_args(Fit), "exact"),
            f"images can be fitted by {', '.join(get_args(Fit))}, not {self.fit!r}",
        )
        require(
            self.broken in get_args(Broken), f"broken images: refuse or skip, not {self.broken!r}"
        )

    @property
    def levels(self) -> GreyRange | None:
        return GreyRange.around(*self.window) if self.window else None


class Loaded(NamedTuple):
    pixels: NDArray[np.uint8]  # the training rows, then those for testing
    train: list[PictureFile]
    test: list[PictureFile]
    broken: int  # pictures that are in neither


def require_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise DatasetMissing(f"{printable(folder)}: {what}")


def listed(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise DatasetCorrupt(f"{printable(folder)}: cannot be read ({error.strerror})") from error


def subfolders(folder: Path) -> list[str]:
    return sorted(name for name in listed(folder) if os.path.isdir(folder / name))


def images(folder: Path) -> Iterator[Path]:
    """The pictures in a folder and below it, by their extension. DatasetCorrupt for a folder such
    as /, which would take hours."""
    # Links are followed, but never twice into a folder, nor into one above: no cycles.
    entered = {os.path.realpath(above) for above in Path(os.path.abspath(folder)).parents}
    waiting = [folder]
    seen = pictures = others = 0
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in entered:
            continue
        entered.add(real)
        for name in sorted(listed(here)):
            seen += 1
            if os.path.isdir(here / name):
                waiting.append(here / name)
            elif os.path.splitext(name)[1].lower() in EXTENSIONS:
                pictures += 1
                yield here / name
            else:
                others += 1
            if seen > MOST_ENTRIES or others > MOST_OTHERS + 10 * pictures:
                raise DatasetCorrupt(
                    f"{printable(folder)}: too many files and folders: choose a folder that has a "
                    f"folder of pictures for each class, and little else"
                )


def load(pictures: list[PictureFile], reading: Reading, root: Path) -> Loaded:
    """`root`: the folder that names are shown relative to."""
    train, test = divide(pictures)
    planned = train + test
    pixels, reasons = decode_all([picture.path for picture in planned], reading)
    if reasons:
        names = sorted(os.path.relpath(planned[row].path, root) for row in reasons)
        broken = f"{len(names)} broken image{'s' if len(names) > 1 else ''}"
        reading.warn(f"{printable(root)}: skipped {broken}: {some(names, 3, 300)}")
        lost = {planned[row] for row in reasons}
        rows = {picture: row for row, picture in enumerate(planned)}
        # Divided anew, so that a class whose only training image is broken gets another one.
        train, test = divide([p for p in pictures if p not in lost])
        pixels = pixels[[rows[picture] for picture in train + test]]
    return Loaded(pixels, train, test, len(reasons))


def decode_all(paths: Sequence[Path], reading: Reading) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """A row of pixels per picture, and for those that are broken, the reason."""
    pixels = _empty(len(paths), reading.size)
    threads = min(4, os.cpu_count() or 1)
    chunk = max(1, min(CHUNK, -(-len(paths) // threads)))
    starts = range(0, len(paths), chunk)
    work = partial(_decode_chunk, paths, pixels, reading, chunk)
    reasons: dict[int, str] = {}
    Image.init()  # before the threads, which would all do it
    pool = ThreadPoolExecutor(threads)
    try:
        # Decoders warn about oddities inside files; those that matter are errors here.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(PIL|pydicom)\b")
            for broken in pool.map(work, starts):
                if broken and reading.broken == "refuse":
                    row, reason = min(broken.items())
                    choice = (
                        "" if reading.fit == "exact" else '; data.broken = "skip" leaves it out'
                    )
                    raise BrokenPicture(
                        f"{printable(paths[row])}: a broken image ({reason}){choice}"
                    )
                reasons |= broken
    finally:
        pool.shutdown(cancel_futures=True)
    return pixels, reasons


def _empty(count: int, size: int) -> NDArray[np.uint8]:
    need = count * size * size * 3
    try:
        if need > available_bytes():
            raise MemoryError
        return np.empty((count, size, size, 3), np.uint8)
    except (MemoryError, ValueError) as error:
        raise ConfigError(
            f"{count} images of {size}x{size} pixels need {need / 2**30:.1f} GiB, which are not "
            f"free: choose a smaller size"
        ) from error


def _decode_chunk(
    paths: Sequence[Path], pixels: NDArray[np.uint8], reading: Reading, chunk: int, start: int
) -> dict[int, str]:
    reasons = {}
    for row, path in enumerate(paths[start : start + chunk], start):
        try:
            pixels[row] = _decode(path, reading)
        except DCFLError:  # about what is installed here, not about the picture
            raise
        except Exception as error:  # decoders meet hostile bytes with every kind of exception
            refused = isinstance(error, OSError) and error.errno is not None
            if refused and reading.unreadable == "refuse":
                reason = _reason(error)
                raise DatasetCorrupt(f"{printable(path)}: cannot be read ({reason})") from error
            reasons[row] = _reason(error)
    return reasons


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return "too many pixels"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return printable(" ".join(str(error).split()), 120) or type(error).__name__


def _decode(path: Path, reading: Reading) -> NDArray[np.uint8]:
    if not path.is_file():  # a pipe would hang, a device would never end
        raise ValueError("not a file" if path.exists() else "a link to nowhere")
    if path.stat().st_size > LARGEST_PICTURE:
        raise ValueError(f"larger than {LARGEST_PICTURE // 10**6:,} MB")
    if path.suffix.lower() in DICOM_EXTENSIONS:
        picture = read_dicom(path, reading.levels)
    else:
        picture = read_by_pillow(path, reading.size, reading.fit, reading.levels)
    return np.asarray(fitted(picture, reading.size, reading.fit))


def arrays_of(
    loaded: Loaded,
    names: Sequence[str],
    tests: Path,
    sites: tuple[str, ...] = (),
    offsets: NDArray[np.int64] | None = None,
) -> Arrays:
    if not loaded.test:
        grouped = come_in_groups(loaded.train)
        what = "two or more groups (data.group)" if grouped else "two or more"
        raise DatasetCorrupt(
            f"{printable(tests)}: no image is left for testing; some class needs {what}"
        )
    cut = len(loaded.train)
    owners = [picture.site for picture in loaded.test] if sites else []
    groups = group_numbers(loaded.train + loaded.test)
    return Arrays(
        train_pixels=loaded.pixels[:cut],
        train_labels=np.array([picture.label for picture in loaded.train], np.int64),
        test_pixels=loaded.pixels[cut:],
        test_labels=np.array([picture.label for picture in loaded.test], np.int64),
        class_names=tuple(printable(name) for name in names),
        site_names=sites,
        site_offsets=np.zeros(0, np.int64) if offsets is None else offsets,
        train_groups=groups[:cut],
        test_groups=groups[cut:],
        test_owners=np.array([] if COMMON in owners else owners, np.int64),
        broken=loaded.broken,
    )


def require_every_class(
    names: Sequence[str], pictures: Iterable[PictureFile], folder: Path
) -> None:
    present = {picture.label for picture in pictures}
    for label, name in enumerate(names):
        if label not in present:
            raise DatasetCorrupt(
                f"{printable(folder)}: class {printable(name)} has no readable image"
            )


def require_two(names: Sequence[str], folder: Path) -> None:
    if not names:
        raise DatasetCorrupt(f"{printable(folder)}: no class folders in it")
    if len(names) == 1:
        raise DatasetCorrupt(
            f"{printable(folder)}: only one class, {printable(names[0])}; a classifier needs two"
        )


def in_grey(pixels: Pixels) -> NDArray[np.uint8]:
    """Some models were trained without colour: [n, H, W, 3] -> [n, H, W, 1]."""
    return np.stack([np.asarray(Image.fromarray(one).convert("L")) for one in pixels])[..., None]
