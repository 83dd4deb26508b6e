"""The pictures that a person names: files, and folders with whatever is below them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dcfl.data.pictures import images
from dcfl.errors import DatasetMissing
from dcfl.system.printable import printable

BLOCK = 100  # pictures in memory at a time, whatever their number


class Found(NamedTuple):
    path: Path
    label: int | None  # of the folder's class, if the picture lies in a folder of that name


def find_pictures(
    places: Iterable[str | Path], class_names: Sequence[str]
) -> Iterator[tuple[Found, ...]]:
    """In blocks, those of a folder in the order of their names. Refuses at once a place that does
    not exist, or where no picture is."""
    paths = [Path(place) for place in places]
    for path in paths:
        if not path.exists():
            raise DatasetMissing(f"{printable(path)}: no such file or folder")
        if path.is_dir() and next(images(path), None) is None:
            raise DatasetMissing(f"{printable(path)}: no picture in it")
    if not paths:
        raise DatasetMissing("no picture given: name some, or folders of them")
    labels = {name: label for label, name in enumerate(class_names)}
    pictures = (found for path in paths for found in _in(path, labels))
    return iter(lambda: tuple(islice(pictures, BLOCK)), ())


def _in(path: Path, labels: dict[str, int]) -> Iterator[Found]:
    if not path.is_dir():
        yield Found(path, None)
        return
    for picture in sorted(images(path)):
        # A class folder inside, or else the folder itself. Class names are as they can be shown.
        below = (*picture.relative_to(path).parts[:-1], path.resolve().name)
        folders = (printable(name) for name in below)
        yield Found(picture, next((labels[name] for name in folders if name in labels), None))
