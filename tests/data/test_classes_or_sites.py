"""OUTER/INNER/picture: classes with patients in them, or sites with classes in them."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.config import experiment_from, parse_settings
from dcfl.data import load_dataset
from dcfl.data.readers.folders import Reading, read_folder, read_sites
from dcfl.errors import ClassNotAgreed, DatasetCorrupt
from dcfl.system.wording import typed
from tests.data.pictures import class_folders

Remarks = list[str]


def read(folder: Path, class_names: Sequence[str] = ()) -> tuple[tuple[str, ...], Remarks]:
    """The classes, and what was said."""
    remarks: Remarks = []
    reading = Reading(8, class_names=class_names, warn=remarks.append)
    return read_folder(folder, reading).class_names, remarks


def numbered(folder: Path, names: str, **counts: int) -> Path:
    """`numbered(x, "p{}", benign=3)`: x/benign/p1 to p3, two pictures in each."""
    for outer, count in counts.items():
        class_folders(folder / outer, **{names.format(n): 2 for n in range(1, count + 1)})
    return folder


@pytest.mark.parametrize(
    "names", ["patient_{:02}", "Pat-{}", "sub-{:02}", "case {} left", "subject{}"]
)
def test_folders_named_as_patients_are_in_classes(tmp_path: Path, names: str) -> None:
    """Numbered anew in each class, as exports do it, or the same patients in both."""
    anew = numbered(tmp_path / "anew", names, benign=10, malignant=6, unclear=3)
    assert read(anew) == (("benign", "malignant", "unclear"), [])
    same = numbered(tmp_path / "same", names, benign=4, malignant=4)
    assert read(same) == (("benign", "malignant"), [])


@pytest.mark.parametrize(
    "sites",
    [
        {"north": {"benign": 2, "malignant": 2}, "south": {"benign": 2, "malignant": 2, "odd": 1}},
        {"north": {"patients": 3, "healthy": 3}, "south": {"patients": 3, "healthy": 3}},
        {"north": {f"{n}": 2 for n in range(10)}, "south": {f"{n}": 2 for n in range(10)}},
        {"north": {f"pT{n}": 3 for n in range(5)}, "south": {f"pT{n}": 3 for n in range(4)}},
        {"north": {"p16 positive": 3, "p16 negative": 3}, "south": {"p16 positive": 3}},
        {"north": {f"{n}": 2 for n in range(9)}, "south": {f"{n}": 2 for n in range(1, 10)}},
    ],
    ids=["words", "patients", "digits", "stages", "markers", "numbers"],
)
def test_what_may_be_sites_is_refused_with_both_readings(
    tmp_path: Path, sites: dict[str, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCFL_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "two hospitals"
    for site, classes in sites.items():
        class_folders(root / site, **classes)
    with pytest.raises(
        DatasetCorrupt, match="sites with classes in them, or classes with patients"
    ) as refused:
        read(root)
    # What the message says to add, as a shell reads it behind the command that failed.
    words = shlex.split(str(refused.value).replace(";", " "))
    asked = [f"data.dataset=folder:{root}", "data.image_size=8", "data.group=none"]
    as_sites, as_classes = (word for word in words if word.startswith("data."))
    found = load_dataset(experiment_from(None, parse_settings([*asked, as_sites])).data)
    assert (found.site_names, {*found.class_names}) == (
        ("north", "south"),
        {name for classes in sites.values() for name in classes},
    )
    found = load_dataset(experiment_from(None, parse_settings([*asked, as_classes])).data)
    assert (found.site_names, found.class_names) == ((), ("north", "south"))


def test_hundreds_of_classes_are_not_all_listed(tmp_path: Path) -> None:
    for number in range(30):
        class_folders(tmp_path / f"outer{number}", left=1, right=1)
    with pytest.raises(DatasetCorrupt, match=r"add data\.class_names, a list of all 30$"):
        read(tmp_path)


def test_sites_whose_classes_would_be_patients(tmp_path: Path) -> None:
    numbered(tmp_path, "patient_{}", benign=3, malignant=3)
    remarks: Remarks = []
    read_sites(tmp_path, Reading(8, warn=remarks.append))
    assert remarks == [
        f"{tmp_path}: the classes look like patients (patient_1, patient_2, patient_3); "
        f"data.dataset=folder:{tmp_path} reads benign, malignant as the classes"
    ]
    people = ("patient_1", "patient_2", "patient_3")  # faces, say
    read_sites(tmp_path, Reading(8, class_names=people, warn=remarks.append))
    assert len(remarks) == 1


def test_a_few_patients_with_both_kinds_of_pictures_do_not_make_sites(tmp_path: Path) -> None:
    class_folders(tmp_path / "benign", p1=2, p2=2, p3=2, p4=2)
    class_folders(tmp_path / "malignant", p4=2, p5=2, p6=2)
    assert read(tmp_path)[0] == ("benign", "malignant")


def test_one_folder_of_pictures_in_every_class_does_not_make_sites(tmp_path: Path) -> None:
    class_folders(tmp_path / "cat", images=5)
    class_folders(tmp_path / "dog", images=5)
    arrays = read_folder(tmp_path, Reading(8, warn=lambda _: None))
    assert (arrays.class_names, len(arrays.test_labels)) == (("cat", "dog"), 2)


@pytest.mark.skipif(os.path.normcase("A") == "a", reason="one folder there")
def test_classes_that_differ_in_capitals_alone(tmp_path: Path) -> None:
    class_folders(tmp_path / "north", Benign=4, malignant=4)
    class_folders(tmp_path / "south", benign=4, malignant=4)
    remarks: Remarks = []
    read_sites(tmp_path, Reading(8, warn=remarks.append))
    (remark,) = remarks
    assert "Benign and benign are different classes" in remark
    class_folders(tmp_path / "north", benign=4)
    classes, (remark,) = read(tmp_path / "north")
    assert classes == ("Benign", "benign", "malignant")
    assert "Benign and benign are different classes" in remark


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Benign", ": did you mean benign?"),
        ("BENIGN", ": did you mean benign?"),
        ("cyst", "; known: benign, malignant"),
    ],
)
def test_a_folder_that_is_no_agreed_class(tmp_path: Path, name: str, hint: str) -> None:
    class_folders(tmp_path, **{name: 2, "malignant": 2})
    with pytest.raises(ClassNotAgreed) as refused:
        read(tmp_path, ("benign", "malignant"))
    assert str(refused.value) == f"{tmp_path / name}: not one of the agreed data.class_names{hint}"


# Folders may have any name; a shell takes no zero byte, and TOML no DEL.
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x7f"))


@given(st.lists(NAMES, min_size=1))
def test_what_is_typed_is_what_is_read(names: list[str]) -> None:
    (word,) = shlex.split(typed("data.class_names", names))
    assert parse_settings([word]) == {"data": {"class_names": names}}
