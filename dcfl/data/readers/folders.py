"""The user's own pictures: a folder per class, or a folder per site with class folders inside."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcfl.data.readers.arrays import Arrays
from dcfl.data.readers.pictures import (
    Loaded,
    Reading,
    Warn,
    arrays_of,
    decode_all,
    images,
    load,
    require_every_class,
    require_folder,
    require_two,
    subfolders,
)
from dcfl.data.splits.grouping import (
    COMMON,
    NONE,
    GroupOf,
    PictureFile,
    grouping,
    warn_about_groups,
    without_idle_groups,
)
from dcfl.errors import ClassNotAgreed, ConfigError, DatasetCorrupt
from dcfl.system.wording import nearest, printable, some, typed

# patient_07, Pat-3, sub-01, case 4 left; not the classes "patients" or "case", nor p16 and pT2.
OF_A_PATIENT = re.compile(
    r"(patient|pat|subject|subj|sub(?=-)|case|person|participant|proband)[^a-z]*\d", re.IGNORECASE
)
MOST_NAMED = 20  # classes that are listed in a command


def require_classes(names: Sequence[str], folder: Path) -> None:
    """Refuses north/ and south/ with the same class folders in both, unless those inside are named
    as patients. Patients who have pictures of several classes are few among all of them."""
    inner = {name: subfolders(folder / name) for name in names}
    often = Counter(name for inside in inner.values() for name in inside)
    shared = sorted(name for name, times in often.items() if times > 1)
    if len(often) < 2 or 2 * len(shared) < len(often) or not all(inner.values()):
        return
    if _named_as_patients(often):
        return
    raise DatasetCorrupt(
        f"{printable(folder)}: {some(names)} have the same folders inside ({some(shared)}): "
        f"sites with classes in them, or classes with patients? If they are sites, add "
        f"{_read_as('sites', folder)}; if they are classes, add {_agreed(names)}"
    )


def warn_of_spellings(class_names: Sequence[str], folder: Path, warn: Warn) -> None:
    for _, alike in groupby(sorted(class_names, key=str.casefold), key=str.casefold):
        if len(names := sorted(alike)) > 1:
            warn(
                f"{printable(folder)}: {' and '.join(printable(name, 40) for name in names)} are "
                f"different classes, and differ in capitals alone: rename the folders if they are "
                f"one"
            )


def _named_as_patients(names: Collection[str]) -> bool:
    return 2 * sum(OF_A_PATIENT.match(name) is not None for name in names) > len(names)


def _read_as(kind: str, folder: Path) -> str:
    return printable(typed("data.dataset", f"{kind}:{folder}"))


def _agreed(names: Sequence[str]) -> str:
    if len(names) <= MOST_NAMED:
        return printable(typed("data.class_names", names))
    return f"data.class_names, a list of all {len(names)}"


TRAIN = ("train", "training")
TEST = ("test", "testing", "val", "valid", "validation")
LONGEST_HINT = 300  # characters: there may be a thousand classes


def read_folder(folder: Path, reading: Reading) -> Arrays:
    """Class folders, or `train` and `test` (or `val`) with class folders in them."""
    require_folder(folder)
    train, test = _parts(folder)
    names = list(reading.class_names)
    if not names:
        names = subfolders(train)
        require_two(names, train)
        require_classes(names, train)
        warn_of_spellings(names, train, reading.warn)
    loaded = _load(folder, [(train, test)], None, names, reading, blamed=train)
    if len(loaded.train) < 2:
        raise DatasetCorrupt(f"{printable(folder)}: fewer than 2 images to train on")
    return arrays_of(loaded, names, test or folder)


def read_sites(folder: Path, reading: Reading) -> Arrays:
    """One folder per client with class folders in it, or with `train` and `test` of its own.

    A folder `test` next to the sites is the test set for all of them.
    """
    sites, test = site_folders(folder)
    parts = [_parts(site) for site in sites]
    names = list(reading.class_names) or sorted(
        {name for train, _ in parts for name in subfolders(train)}
    )
    require_two(names, folder)
    if not reading.class_names:
        warn_of_spellings(names, folder, reading.warn)
        if _named_as_patients(names):
            reading.warn(
                f"{printable(folder)}: the classes look like patients ({some(names)}); "
                f"{_read_as('folder', folder)} reads {some([site.name for site in sites])} as "
                f"the classes"
            )
    loaded = _load(folder, parts, test, names, reading, blamed=folder)
    offsets = _site_offsets(loaded.train, sites)
    site_names = tuple(printable(site.name) for site in sites)
    return arrays_of(loaded, names, test or folder, site_names, offsets)


def _load(
    folder: Path,
    parts: Sequence[tuple[Path, Path | None]],
    common: Path | None,
    names: Sequence[str],
    reading: Reading,
    blamed: Path,
) -> Loaded:
    """The pictures of some sites, each with a folder to train on and perhaps one to test on, and of
    the test set that they have in common, if any. `blamed`: for a class without pictures."""
    find = partial(_pictures, names, grouping(reading.group), bool(reading.class_names))
    pictures = []
    for number, (train, test) in enumerate(parts):
        apart = test is not None or common is not None
        pictures += find(train, "train" if apart else "either", number)
        pictures += find(test, "test", number) if test else []
    pictures += find(common, "test", COMMON) if common else []
    if not reading.class_names:
        trained = [picture for picture in pictures if picture.part != "test"]
        require_every_class(names, trained, blamed)

    def warn(remark: str) -> None:
        reading.warn(f"{printable(folder)}: {remark}")

    _warn_of_ignored(folder, pictures, warn)
    loaded = load(without_idle_groups(pictures, warn), reading, folder)
    warn_about_groups(loaded.train, loaded.test, names, warn)
    if not reading.class_names:
        require_every_class(names, loaded.train, blamed)
    return loaded


def _warn_of_ignored(folder: Path, found: Sequence[PictureFile], warn: Warn) -> None:
    read = {os.path.realpath(picture.path) for picture in found}
    ignored = sorted(
        os.path.relpath(path, folder)
        for path in images(folder)
        if os.path.realpath(path) not in read
    )
    if ignored:
        which, are = ("picture", "is") if len(ignored) == 1 else ("pictures", "are")
        warn(
            f"{len(ignored):,} {which} outside the class folders {are} ignored: "
            f"{some(ignored, 3, 300)}"
        )


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """The folders of each class: the one to train on, and the one to test on if there is one."""
    require_folder(folder)
    found: dict[str, list[Path]] = {}
    for part in filter(None, _parts(folder)):
        for name in subfolders(part):
            found.setdefault(name, []).append(part / name)
    return found


def read_to_score(folder: Path, reading: Reading, site: int = 0) -> Arrays:
    """Class folders to score a trained model on: those in `test` (or `val`) if there is a `train`
    beside it, else all pictures. They are the test images, and there are none to train on."""
    require_folder(folder)
    train, test = _parts(folder)
    names = subfolders(test or train)
    if not names:
        raise DatasetCorrupt(f"{printable(test or train)}: no class folders in it")
    try:
        pictures = _pictures(names, grouping(reading.group), False, test or train, "test", site)
    except (ConfigError, DatasetCorrupt):  # a rule or a table for the training's names
        pictures = _pictures(names, grouping(NONE), False, test or train, "test", site)
    if not pictures:
        raise DatasetCorrupt(f"{printable(test or train)}: no picture in its class folders")
    return arrays_of(load(pictures, reading, folder), names, test or folder)


def folder_files(folder: Path) -> list[Path]:
    """Every picture below the folder, sorted: all that `read_folder` or `read_sites` may read."""
    require_folder(folder)
    return sorted(images(folder))


def folder_names(folder: Path) -> list[str]:
    """Every folder below this one: an empty class or site is part of what a data set is."""
    below = (Path(here, name) for here, names, _ in os.walk(folder) for name in names)
    return sorted(os.path.relpath(path, folder) for path in below)


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """The folder with the class folders for training, and the one for testing if there is one."""
    # "train" may also be a class next to "car" and "plane": it counts only with folders in it.
    holding = {
        name.lower(): folder / name for name in subfolders(folder) if subfolders(folder / name)
    }
    train = next((holding[name] for name in TRAIN if name in holding), None)
    test = next((holding[name] for name in TEST if name in holding), None)
    if train is not None and (test is not None or len(subfolders(folder)) == 1):
        return train, test
    return folder, None


def site_folders(folder: Path) -> tuple[list[Path], Path | None]:
    """The folders of the sites, and the test set for all of them if there is one."""
    require_folder(folder)
    names = subfolders(folder)
    for name in names:
        if not subfolders(folder / name):
            raise DatasetCorrupt(
                f"{printable(folder / name)}: no class folders in it; "
                f"sites are stored as SITE/CLASS/image"
            )
    test = next((folder / name for name in names if name.lower() == "test"), None)
    sites = [folder / name for name in names if folder / name != test]
    if not sites:
        raise DatasetCorrupt(f"{printable(folder)}: no site folders in it")
    return sites, test


def _site_offsets(train: Sequence[PictureFile], sites: Sequence[Path]) -> NDArray[np.int64]:
    counts = Counter(picture.site for picture in train)
    for number, site in enumerate(sites):
        if counts[number] < 2:
            raise DatasetCorrupt(
                f"{printable(site)}: a site needs at least 2 images to train on, "
                f"this one has {counts[number]}"
            )
    return np.cumsum([0] + [counts[number] for number in range(len(sites))], dtype=np.int64)


def _pictures(
    class_names: Sequence[str],
    group_of: GroupOf,
    agreed: bool,
    folder: Path,
    part: Literal["train", "test", "either"],
    site: int = 0,
) -> list[PictureFile]:
    """Those in the class folders of this folder. `agreed`: the names were not read from the folders
    to train on."""
    found = []
    for name in subfolders(folder):
        if name not in class_names:
            reason = "no images of this class to train on"
            reason = "not one of the agreed data.class_names" if agreed else reason
            hint = printable(nearest(name, class_names), LONGEST_HINT)
            raise ClassNotAgreed(f"{printable(folder / name)}: {reason}{hint}")
        label = class_names.index(name)
        for path in sorted(images(folder / name)):
            group = group_of(path, folder / name)
            found.append(PictureFile(site, label, part, path, group))
    return found


_SIDE = 32  # pixels: whether a file can be decoded does not depend on the size
_BATCH = 2048  # pictures whose pixels are in memory at a time


@dataclass(frozen=True)
class PictureCheck:
    """A look at all pictures of a folder before anybody trains on them."""

    folder: Path
    classes: Mapping[str, int]  # pictures by class, the broken ones too
    broken: Mapping[Path, str]  # and why

    @property
    def total(self) -> int:
        return sum(self.classes.values())

    @property
    def broken_text(self) -> str:
        names = (
            f"{os.path.relpath(path, self.folder)} ({self.broken[path]})"
            for path in sorted(self.broken)
        )
        return f"{len(self.broken)} of {self.total}: {some(names, 3, 300)}"


def check_pictures(folder: Path) -> PictureCheck:
    """Decodes every picture; an error only if the folder as a whole cannot be read."""
    found = {
        name: [path for part in parts for path in sorted(images(part))]
        for name, parts in class_folders(folder).items()
    }
    paths = [path for pictures in found.values() for path in pictures]
    counts = {name: len(pictures) for name, pictures in found.items()}
    return PictureCheck(folder, counts, broken_pictures(paths))


def broken_pictures(paths: Sequence[Path], window: Sequence[float] = ()) -> dict[Path, str]:
    # Names that are hidden from this user are broken pictures too.
    reading = Reading(_SIDE, broken="skip", unreadable="skip", window=window)
    broken: dict[Path, str] = {}
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        _, reasons = decode_all(batch, reading)
        broken |= {batch[row]: why for row, why in reasons.items()}
    return broken
