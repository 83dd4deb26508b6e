"""Data sets from what users have in memory, in one line."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import dcfl
from dcfl.data import Dataset, Images
from dcfl.errors import ConfigError, DatasetCorrupt

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (20, 8, 8, 3), np.uint8)
LABELS = np.arange(20) % 2
PICTURES = [Image.fromarray(one) for one in COLOUR]


class Table:
    """As a data set of Hugging Face answers."""

    def __init__(self, names: list[str] | None = None, **columns: Any) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": SimpleNamespace(names=names)} if names else {}

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


def pixels(dataset: Dataset) -> np.ndarray:
    """Of all images, in order: those to train on, then those to test on."""
    return torch.cat([dataset.train.pixels, dataset.test.pixels]).numpy()


SAME: dict[str, tuple[Any, Any]] = {
    "numpy": (COLOUR, LABELS),
    "a list of arrays": (list(COLOUR), LABELS.tolist()),
    "channels first": (COLOUR.transpose(0, 3, 1, 2), LABELS),
    "torch": (torch.from_numpy(COLOUR), torch.from_numpy(LABELS)),
    "torch, floats": (torch.from_numpy(COLOUR).permute(0, 3, 1, 2) / 255, list(LABELS)),
    "a list of tensors": ([torch.from_numpy(one) for one in COLOUR], LABELS),
    "labels in a column": (COLOUR, LABELS[:, None]),
    "pictures": (PICTURES, LABELS),
    "a generator": ((one for one in PICTURES), LABELS),
    "hugging face": (Table(image=PICTURES, label=LABELS.tolist()), None),
    "hugging face, by name": (Table(img=PICTURES, kind=LABELS.tolist()), "kind"),
}


@pytest.mark.parametrize("kind", SAME)
def test_every_kind_gives_the_same_data_set(kind: str) -> None:
    found = Dataset.from_arrays(*SAME[kind])
    expected = Dataset.from_arrays(COLOUR, LABELS)
    assert found.fingerprint == expected.fingerprint
    assert found.class_names == ("0", "1")
    assert (len(found.train), len(found.test)) == (16, 4)
    assert sorted(map(bytes, pixels(found))) == sorted(map(bytes, COLOUR))


def test_preparation_follows_from_the_images() -> None:
    found = Dataset.from_arrays(COLOUR, LABELS)
    scaled = found.train.pixels.double() / 255
    assert found.preparation.mean == pytest.approx(scaled.mean(dim=(0, 1, 2)).tolist(), abs=1e-4)
    assert found.preparation.augmentation.crop == 1


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=12, max_size=60),
    st.floats(0.05, 0.6),
)
def test_shares_of_each_class_at_each_site(drawn: list[tuple[int, int]], share: float) -> None:
    drawn += [(label, site) for label in range(3) for site in (0, 1)] * 2
    labels, sites = map(np.array, zip(*drawn, strict=True))
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1)
    found = Dataset.from_arrays(images, labels, test=share, sites=sites)
    assert sorted(pixels(found).ravel().tolist()) == list(range(len(labels)))
    for label in range(3):
        for site in (0, 1):
            own = np.flatnonzero((labels == label) & (sites == site))
            held = np.isin(own, found.test.pixels.numpy().ravel()).sum()
            assert held == min(max(round(share * len(own)), 1), len(own) - 1)
    assert found.partition is not None
    rows = found.train.pixels.ravel().numpy()
    for name, part in zip(found.site_names, map(found.partition.of, (0, 1)), strict=True):
        assert {str(sites[row]) for row in rows[part]} == {name}


def test_patients_stay_together() -> None:
    patients = [f"p{number // 4}" for number in range(40)]
    images = np.arange(40, dtype=np.uint8).reshape(-1, 1, 1)
    labels = [number // 4 % 2 for number in range(40)]
    found = Dataset.from_arrays(images, labels, groups=patients)
    sides = [set((part.pixels.ravel() // 4).tolist()) for part in (found.train, found.test)]
    assert sides[1]
    assert not sides[0] & sides[1]
    assert found.group_count == 10


def test_names_of_classes() -> None:
    assert Dataset.from_arrays(COLOUR, ["dog", "cat"] * 10).class_names == ("cat", "dog")
    table = Table(["cat", "dog"], image=PICTURES, label=LABELS.tolist())
    assert Dataset.from_arrays(table).class_names == ("cat", "dog")
    named = Dataset.from_arrays(COLOUR, LABELS, class_names=["a", "b", "c"])
    assert named.class_names == ("a", "b", "c")
    words = Dataset.from_arrays(COLOUR, ["b", "a"] * 10, class_names=["b", "a"])
    assert words.train.labels[:2].tolist() == [0, 1]


def test_test_images_of_their_own() -> None:
    for test in ((COLOUR[:4], LABELS[:4]), Table(image=PICTURES[:4], label=LABELS[:4].tolist())):
        found = Dataset.from_arrays(COLOUR, LABELS, test=test)
        assert (len(found.train), len(found.test)) == (20, 4)


def test_pictures_of_any_size_and_grey_ones() -> None:
    wide = [Image.new("L", (20, 10 + number)) for number in range(10)]
    found = Dataset.from_arrays(wide, [0, 1] * 5, image_size=12)
    assert tuple(found.train.pixels.shape[1:]) == (12, 12, 1)


def test_vectors() -> None:
    found = Dataset.from_arrays(RNG.normal(size=(20, 7)).astype(np.float32), LABELS)
    assert found.vectors


def test_it_trains_by_site(tmp_path: Any) -> None:
    data = Dataset.from_arrays(
        RNG.integers(0, 256, (80, 8, 8), np.uint8),
        np.arange(80) % 2,
        sites=["north", "south"] * 40,
    )
    result = dcfl.run(dataset=data, out=tmp_path / "run", federation={"rounds": 1})
    assert (result.summary.clients, result.summary.sampled) == (2, 2)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "labels missing": ({"labels": None}, ConfigError, "labels are missing"),
    "too few labels": ({"labels": LABELS[:5]}, DatasetCorrupt, "labels: 5 for 20 images"),
    "labels that are fractions": (
        {"labels": LABELS / 2},
        DatasetCorrupt,
        "labels must be integers",
    ),
    "gaps": ({"labels": LABELS * 2}, DatasetCorrupt, "1 is not among them"),
    "not square": ({"images": COLOUR[:, :4]}, DatasetCorrupt, "must be square"),
    "bytes as int64": ({"images": COLOUR.astype(int)}, DatasetCorrupt, "not int64"),
    "sizes differ": ({"images": [COLOUR[0], COLOUR[1][:4]]}, DatasetCorrupt, "image_size=64"),
    "pictures differ": (
        {"images": [Image.new("L", (9, 9)), Image.new("L", (8, 8))]},
        DatasetCorrupt,
        "image_size=64",
    ),
    "deep pictures": (
        {"images": [Image.new("I", (8, 8))] * 20},
        DatasetCorrupt,
        "more than 8 bits",
    ),
    "share": ({"test": 1.5}, ConfigError, "between 0 and 1"),
    "sites": ({"sites": ["a"]}, DatasetCorrupt, "sites: 1 for 20 images"),
    "one site": ({"sites": ["a"] * 20}, DatasetCorrupt, "leave sites out"),
    "groups": ({"groups": [1]}, DatasetCorrupt, "groups: 1 for 20 images"),
    "class names": ({"class_names": ["a"]}, DatasetCorrupt, "label 1 with 1 classes"),
    "other words": (
        {"labels": ["cat", "cow"] * 10, "class_names": ["cat", "dog"]},
        DatasetCorrupt,
        "cow is none of the class names",
    ),
    "test of another size": (
        {"test": (COLOUR[:, :4, :4], LABELS)},
        DatasetCorrupt,
        r"test: images of \[4, 4, 3\]",
    ),
    "no such column": (
        {"images": Table(image=PICTURES, label=[0]), "labels": "kind"},
        ConfigError,
        "no column 'kind'",
    ),
    "no images": ({"images": Table(text=[]), "labels": None}, ConfigError, "none of its columns"),
    "all parts": (
        {"images": SimpleNamespace(column_names={"train": ["image"]}), "labels": None},
        ConfigError,
        r'data\["train"\]',
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_line(case: str) -> None:
    changed, error, message = WRONG[case]
    arguments: dict[str, Any] = {"images": COLOUR, "labels": LABELS, **changed}
    with pytest.raises(error, match=message):
        Dataset.from_arrays(**arguments)


def test_images_of_numpy_say_what_to_do() -> None:
    with pytest.raises(DatasetCorrupt, match=r"not ndarray of uint8 .*Dataset\.from_arrays"):
        Images(COLOUR, LABELS)  # type: ignore[arg-type]
