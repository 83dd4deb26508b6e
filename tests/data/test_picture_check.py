"""All pictures of a folder, looked at before anybody trains on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dcfl.data.readers import picture_check
from dcfl.data.readers.picture_check import check_pictures
from dcfl.errors import DatasetMissing

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
        patch.setattr(picture_check, "_BATCH", 3)
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
