"""What folders are, by their names: classes with patients in them, or sites with classes in them.

Both lie on disk as OUTER/INNER/picture. Taken for the other, a model learns to tell hospitals
apart, or patients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from dcfl.data.pictures import Warn, images, subfolders
from dcfl.errors import DatasetCorrupt
from dcfl.system.printable import printable
from dcfl.system.typed_settings import typed

# patient_07, Pat-3, sub-01, case 4 left; not the classes "patients" or "case", nor p16 and pT2.
OF_A_PATIENT = re.compile(
    r"(patient|pat|subject|subj|sub(?=-)|case|person|participant|proband)[^a-z]*\d", re.IGNORECASE
)
PATIENTS_PER_CLASS = 3  # and more, where numbers alone are taken for patients
FEW_PICTURES = 20  # of a patient, on average
MOST_NAMED = 20  # classes that are listed in a command


def require_classes(names: Sequence[str], folder: Path, warn: Warn) -> None:
    """Refuses north/ and south/ with the same class folders in both, unless those inside are
    patients. Patients who have pictures of several classes are few among all of them, or numbered
    anew in each class."""
    inner = {name: subfolders(folder / name) for name in names}
    often = Counter(name for inside in inner.values() for name in inside)
    shared = sorted(name for name, times in often.items() if times > 1)
    if len(often) < 2 or 2 * len(shared) < len(often) or not all(inner.values()):
        return
    if _named_as_patients(often):
        return
    as_sites, as_classes = _read_as("sites", folder), _agreed(names)
    if _numbered_as_patients(inner, folder):
        warn(
            f"{printable(folder)}: {_first(names)} are read as classes, and {_first(shared)} in "
            f"them as patients. Add {as_classes} to say so for good; if they are sites, add "
            f"{as_sites}"
        )
        return
    raise DatasetCorrupt(
        f"{printable(folder)}: {_first(names)} have the same folders inside ({_first(shared)}): "
        f"sites with classes in them, or classes with patients? If they are sites, add {as_sites}; "
        f"if they are classes, add {as_classes}"
    )


def warn_of_patients(
    class_names: Sequence[str], sites: Sequence[str], folder: Path, warn: Warn
) -> None:
    """Where the classes of sites are named as patients are."""
    if _named_as_patients(class_names):
        warn(
            f"{printable(folder)}: the classes look like patients ({_first(class_names)}); "
            f"{_read_as('folder', folder)} reads {_first(sites)} as the classes"
        )


def warn_of_spellings(class_names: Sequence[str], folder: Path, warn: Warn) -> None:
    """Classes whose names differ in capitals alone."""
    for _, alike in groupby(sorted(class_names, key=str.casefold), key=str.casefold):
        if len(names := sorted(alike)) > 1:
            warn(
                f"{printable(folder)}: {' and '.join(printable(name, 40) for name in names)} are "
                f"different classes, and differ in capitals alone: rename the folders if they are "
                f"one"
            )


def _named_as_patients(names: Collection[str]) -> bool:
    return 2 * sum(OF_A_PATIENT.match(name) is not None for name in names) > len(names)


def _numbered_as_patients(inner: Mapping[str, Sequence[str]], folder: Path) -> bool:
    """Many numbers, other ones in each class, with few pictures each. Classes may be numbered too,
    but sites have the same ones, and not few pictures of so many."""
    numbers = {name for inside in inner.values() for name in inside}
    if len(numbers) < PATIENTS_PER_CLASS * len(inner) or len({*map(tuple, inner.values())}) == 1:
        return False
    if not all(re.search(r"\d", name) for name in numbers):
        return False
    pictures = sum(1 for name in inner for _ in images(folder / name))
    return pictures <= FEW_PICTURES * sum(map(len, inner.values()))


def _read_as(kind: str, folder: Path) -> str:
    return printable(typed("data.dataset", f"{kind}:{folder}"))


def _agreed(names: Sequence[str]) -> str:
    """How to say that these are the classes."""
    if len(names) <= MOST_NAMED:
        return printable(typed("data.class_names", names))
    return f"data.class_names, a list of all {len(names)}"


def _first(names: Sequence[str], most: int = 4) -> str:
    shown = [printable(name, 40) for name in names[:most]]
    return ", ".join([*shown, *(["..."] if len(names) > most else [])])
