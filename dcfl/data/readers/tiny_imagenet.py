"""Tiny-ImageNet in its official layout; the validation images are the test set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dcfl.data.readers.arrays import Arrays
from dcfl.data.readers.pictures import (
    Reading,
    arrays_of,
    listed,
    load,
    require_every_class,
    require_two,
)
from dcfl.data.splits.grouping import PictureFile
from dcfl.errors import DatasetCorrupt, DatasetMissing
from dcfl.system.storage import open_data
from dcfl.system.wording import printable


def read_tiny_imagenet(folder: Path) -> Arrays:
    root = _tiny_root(folder)
    classes = _tiny_classes(root)
    labels = {wnid: label for label, wnid in enumerate(classes)}
    train = [
        PictureFile(0, label, "train", path)
        for wnid, label in labels.items()
        for path in _jpegs(root / "train" / wnid / "images")
    ]
    test = _tiny_validation(root, labels)
    for part, pictures in ((root / "train", train), (root / "val", test)):
        require_every_class(classes, pictures, part)
    loaded = load(train + test, Reading(64, "exact"), root)
    return arrays_of(loaded, _tiny_names(root, classes), root)


def tiny_imagenet_files(folder: Path) -> list[Path]:
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
        raise DatasetMissing(f"{printable(inside)}: no such folder; {get}")
    root = inside if inside.is_dir() else folder
    for name in (*TINY_LISTS, "train", "val/images"):
        if not (root / name).exists():
            raise DatasetMissing(f"{printable(root / name)} is missing; {get}")
    return root


def _tiny_classes(root: Path) -> list[str]:
    """The WordNet ids in the order that defines the labels."""
    path = root / "wnids.txt"
    classes = _text(path).split()
    for wnid, count in Counter(classes).items():
        # The ids become part of paths, so anything else is refused.
        if not re.fullmatch(r"n[0-9]{8}", wnid) or count > 1:
            raise DatasetCorrupt(
                f"{printable(path)}: {wnid[:40]!r} is no WordNet id, or there twice"
            )
    require_two(classes, path)
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


def _tiny_validation(root: Path, labels: Mapping[str, int]) -> list[PictureFile]:
    path = root / "val" / "val_annotations.txt"
    images = {image.name: image for image in _jpegs(root / "val" / "images")}
    pictures = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in labels:
            raise DatasetCorrupt(f"{printable(path)}, line {number}: unknown class {wnid[:40]!r}")
        image = images.pop(name, None)
        if image is None:
            raise DatasetCorrupt(
                f"{printable(path)}, line {number}: {name[:80]!r} is not in val/images, "
                f"or there twice"
            )
        pictures.append(PictureFile(0, labels[wnid], "test", image))
    return pictures


def _jpegs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DatasetCorrupt(f"{printable(folder)}: no such folder")
    names = sorted(name for name in listed(folder) if name.lower().endswith((".jpeg", ".jpg")))
    return [folder / name for name in names]


def _text(path: Path) -> str:
    try:
        with open_data(path, most=10_000_000) as stream:
            return stream.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetCorrupt(f"{printable(path)}: not a text file") from error
    except OSError as error:
        raise DatasetCorrupt(f"{printable(path)}: cannot be read ({error.strerror})") from error
