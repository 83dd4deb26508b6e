"""Data sets from what users have in memory, in one line."""

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import dcfl
from dcfl.data import Dataset, DataSettings, Images, load_dataset
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing

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
    found = Dataset.of(*SAME[kind])
    expected = Dataset.of(COLOUR, LABELS)
    assert found.fingerprint == expected.fingerprint
    assert found.class_names == ("0", "1")
    assert (len(found.train), len(found.test)) == (16, 4)
    assert sorted(map(bytes, pixels(found))) == sorted(map(bytes, COLOUR))


def test_preparation_follows_from_the_images() -> None:
    found = Dataset.of(COLOUR, LABELS)
    scaled = found.train.pixels.double() / 255
    assert found.preparation.mean == pytest.approx(scaled.mean(dim=(0, 1, 2)).tolist(), abs=1e-4)
    assert found.preparation.augmentation.crop == 1


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=12, max_size=60),
    st.floats(0.05, 0.6),
)
def test_each_site_gives_the_share(drawn: list[tuple[int, int]], share: float) -> None:
    drawn += [(label, site) for label in range(3) for site in (0, 1)] * 2
    labels, sites = map(np.array, zip(*drawn, strict=True))
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1)
    found = Dataset.of(images, labels, test=share, sites=sites)
    assert sorted(pixels(found).ravel().tolist()) == list(range(len(labels)))
    tested = found.test.pixels.numpy().ravel()
    for site in (0, 1):
        own = np.flatnonzero(sites == site)
        count = min(max(round(share * len(own)), 1), len(own) - 3)
        assert np.isin(own, tested).sum() == count
        for label in range(3):  # one remains to train on, and no class gives much more than others
            of_class = own[labels[own] == label]
            held = np.isin(of_class, tested).sum()
            assert held < len(of_class)
            assert held <= count * len(of_class) / (len(own) - 3) + 1
    assert found.partition is not None
    rows = found.train.pixels.ravel().numpy()
    for name, part in zip(found.site_names, map(found.partition.of, (0, 1)), strict=True):
        assert {str(sites[row]) for row in rows[part]} == {name}


@given(st.lists(st.integers(0, 2), min_size=3, max_size=40), st.floats(0.05, 0.6))
def test_without_sites_each_class_gives_the_share(drawn: list[int], share: float) -> None:
    labels = np.array([*drawn, 0, 1, 2, 0, 1, 2])
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1)
    tested = Dataset.of(images, labels, test=share).test.pixels.numpy().ravel()
    for label in range(3):
        own = np.flatnonzero(labels == label)
        expected = min(max(round(share * len(own)), 1), len(own) - 1)
        assert np.isin(own, tested).sum() == expected


def test_patients_stay_together() -> None:
    patients = [f"p{number // 4}" for number in range(40)]
    images = np.arange(40, dtype=np.uint8).reshape(-1, 1, 1)
    labels = [number // 4 % 2 for number in range(40)]
    found = Dataset.of(images, labels, groups=patients)
    sides = [set((part.pixels.ravel() // 4).tolist()) for part in (found.train, found.test)]
    assert sides[1]
    assert not sides[0] & sides[1]
    assert found.group_count == 10


def test_names_of_classes() -> None:
    assert Dataset.of(COLOUR, ["dog", "cat"] * 10).class_names == ("cat", "dog")
    table = Table(["cat", "dog"], image=PICTURES, label=LABELS.tolist())
    assert Dataset.of(table).class_names == ("cat", "dog")
    named = Dataset.of(COLOUR, LABELS, class_names=["a", "b", "c"])
    assert named.class_names == ("a", "b", "c")
    words = Dataset.of(COLOUR, ["b", "a"] * 10, class_names=["b", "a"])
    assert words.train.labels[:2].tolist() == [0, 1]


def test_test_images_of_their_own() -> None:
    for test in ((COLOUR[:4], LABELS[:4]), Table(image=PICTURES[:4], label=LABELS[:4].tolist())):
        found = Dataset.of(COLOUR, LABELS, test=test)
        assert (len(found.train), len(found.test)) == (20, 4)


def test_pictures_of_any_size_and_grey_ones() -> None:
    wide = [Image.new("L", (20, 10 + number)) for number in range(10)]
    found = Dataset.of(wide, [0, 1] * 5, image_size=12)
    assert tuple(found.train.pixels.shape[1:]) == (12, 12, 1)


SERIES = RNG.normal(size=(20, 3, 9)).astype(np.float32)
TOKENS = RNG.integers(1, 9, (20, 5))
# By what is given: the shape of one input, channels and size, and whether it is normalised.
KINDS: dict[str, tuple[Any, tuple[int, ...], int, Any, bool]] = {
    "vectors": (SERIES[:, 0], (9,), 9, 1, True),
    "series": (SERIES, (3, 9), 3, (9,), False),
    "series of square shape": (SERIES[..., :3] * 9, (3, 3), 3, (3,), False),
    "floats beyond 0 to 1": (SERIES[..., None].repeat(9, 3), (3, 9, 9), 3, 9, False),
    "the same, channels last": (SERIES.transpose(0, 2, 1)[:, None].repeat(9, 1),
                                (3, 9, 9), 3, 9, False),
    "volumes": (SERIES[:, None, :, :, None] + 0, (1, 3, 9, 1), 1, (3, 9, 1), False),
    "token ids": (TOKENS, (5,), int(TOKENS.max()) + 1, (5,), False),
    "bytes": (TOKENS.astype(np.uint8), (5,), int(TOKENS.max()) + 1, (5,), False),
    "wide images": (COLOUR[:, :4], (3, 4, 8), 3, (4, 8), True),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_any_numbers(kind: str) -> None:
    given, shape, channels, size, normalised = KINDS[kind]
    found = Dataset.of(given, LABELS)
    assert (found.shape, found.channels, found.size) == (shape, channels, size)
    assert bool(found.preparation.mean) is normalised
    prepared = found.preparation.clean(found.train.pixels)
    assert tuple(prepared.shape[1:]) == shape
    if not normalised:
        assert sorted(prepared.flatten().tolist()) != []
        assert {*prepared.flatten().tolist()} <= {*np.asarray(given).flatten().tolist()}
        prepared.zero_()  # no model can change the data
        assert found.train.pixels.count_nonzero()


def test_as_they_are() -> None:
    levels = COLOUR / 255
    assert Dataset.of(levels, LABELS).train.pictures
    found = Dataset.of(levels, LABELS, as_is=True)
    assert (found.shape, found.preparation.mean) == ((3, 8, 8), ())
    vectors = Dataset.of(SERIES[:, 0], LABELS, as_is=True)
    torch.testing.assert_close(
        vectors.preparation.clean(vectors.train.pixels), vectors.train.pixels
    )


def test_texts_of_different_length_end_in_zeros() -> None:
    found = Dataset.of([[3, 1], [2, 2, 2], [], [5]] * 5, LABELS)
    assert found.shape == (3,)
    rows = {tuple(row) for row in torch.cat([found.train.pixels, found.test.pixels]).tolist()}
    assert rows == {(3, 1, 0), (2, 2, 2), (0, 0, 0), (5, 0, 0)}


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(SERIES[row]), int(LABELS[row])


def test_a_data_set_of_torch() -> None:
    found = Dataset.of(Pairs(), test=Pairs())
    assert (found.shape, found.class_names) == ((3, 9), ("cat", "dog"))
    assert np.array_equal(found.train.pixels, SERIES)
    assert found.test.labels.tolist() == LABELS.tolist()


def test_a_file_with_a_label_and_a_client_column(tmp_path: Any) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(SERIES[:, 0], columns=[f"x{n}" for n in range(9)])
    table["client"], table["outcome"] = ["north", "south"] * 10, ["ill", "well"] * 10
    table.loc[:3, "outcome"] = "ill"
    table.to_csv(tmp_path / "all.csv", index=False)
    table.drop(columns="client").to_csv(tmp_path / "test.csv", index=False)
    for source in (tmp_path / "all.csv", table):
        found = Dataset.of(source, "outcome", test=tmp_path / "test.csv")
        assert (found.shape, found.class_names) == ((9,), ("ill", "well"))
        assert found.site_names == ("north", "south")
        torch.testing.assert_close(found.test.pixels, torch.from_numpy(SERIES[:, 0]))
    roles = table.assign(x0=[1, 2] * 10, x1=np.arange(20) // 2).drop(columns="client")
    by_role = Dataset.of(roles, "outcome", sites="x0", groups="x1", test=0.5)
    assert (sorted(by_role.site_names), by_role.shape) == (["1", "2"], (7,))
    assert by_role.group_count


def test_a_parquet_file(tmp_path: Any) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(SERIES[:, 0], columns=[f"x{n}" for n in range(9)])
    table["site"], table["label"] = ["north", "south"] * 10, LABELS
    table.to_parquet(tmp_path / "all.parquet")
    found = Dataset.of(tmp_path / "all.parquet", test=tmp_path / "all.parquet")
    assert (found.shape, found.site_names) == ((9,), ("north", "south"))
    torch.testing.assert_close(found.test.pixels, torch.from_numpy(SERIES[:, 0]))


def test_a_parquet_file_without_a_reader(tmp_path: Any, monkeypatch: Any) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "all.parquet").touch()
    with pytest.raises(ConfigError, match="reading it needs pyarrow: pip install pyarrow"):
        Dataset.of(tmp_path / "all.parquet")


def test_saved_and_read_again(tmp_path: Any) -> None:
    sites, patients = ["a", "b"] * 10, [f"p{n // 2}" for n in range(20)]
    sets = [Dataset.of(KINDS[kind][0], LABELS) for kind in KINDS]
    sets.append(Dataset.of(SERIES, LABELS, sites=sites, class_names=["x", "y"]))
    sets.append(Dataset.of(SERIES[:, 0], LABELS, groups=patients, as_is=True))
    for whole in sets:
        file = whole.save(tmp_path)
        assert whole.save(tmp_path) == file
        read = load_dataset(DataSettings(dataset=f"npz:{file}"))
        assert (read.fingerprint, read.content) == (whole.fingerprint, whole.content)
        assert (read.site_names, read.preparation) == (whole.site_names, whole.preparation)
        for name in ("groups", "owners"):
            before, after = getattr(whole.test, name), getattr(read.test, name)
            assert before is after is None or torch.equal(before, after)
    assert len([*tmp_path.iterdir()]) == len(sets) - 1  # bytes are token ids


SPOILT: dict[str, dict[str, Any]] = {
    "offsets": {"site_offsets": np.array([0, 4, 5])},
    "no names": {"site_names": np.array([], dtype=str)},
    "owners": {"test_owners": np.full(4, 2)},
    "groups": {"train_groups": np.zeros(3, int)},
    "infinite": {"mean": np.full(9, np.inf)},
    "flat": {"std": np.zeros(9)},
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_file_is_refused(kind: str, tmp_path: Any) -> None:
    file = Dataset.of(SERIES[:, 0], LABELS, sites=["a", "b"] * 10).save(tmp_path / "x.npz")
    with np.load(file) as stored:
        np.savez(file, **{**stored, **SPOILT[kind]})
    with pytest.raises(DatasetCorrupt, match=r"x\.npz: "):
        load_dataset(DataSettings(dataset=f"npz:{file}"))


def test_it_trains_by_site(tmp_path: Any) -> None:
    data = Dataset.of(
        RNG.integers(0, 256, (80, 8, 8), np.uint8),
        np.arange(80) % 2,
        sites=["north", "south"] * 40,
    )
    result = dcfl.run(dataset=data, out=tmp_path / "run", federation={"rounds": 1})
    assert (result.summary.clients, result.summary.sampled) == (2, 2)


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "labels missing": ({"labels": None}, ConfigError, "labels are missing"),
    "too few labels": ({"labels": LABELS[:5]}, DatasetCorrupt, "labels: 5 for 20 inputs"),
    "labels that are fractions": (
        {"labels": LABELS / 2},
        DatasetCorrupt,
        "labels must be integers",
    ),
    "gaps": ({"labels": LABELS * 2}, DatasetCorrupt, "1 is not among them"),
    "one number each": ({"inputs": np.arange(20)}, DatasetCorrupt, "one array for each"),
    "negative integers": (
        {"inputs": -np.ones((20, 4), int)},
        DatasetCorrupt,
        r"are token ids, .* as \.astype\(float\) makes them",
    ),
    "text": ({"inputs": [["a", "b"]] * 20}, DatasetCorrupt, "numbers are needed"),
    "no file": ({"inputs": "nowhere.csv"}, DatasetMissing, "no such file"),
    "bytes as int64": ({"inputs": COLOUR.astype(int)}, DatasetCorrupt, "not int64"),
    "sizes differ": ({"inputs": [COLOUR[0], COLOUR[1][:4]]}, DatasetCorrupt, "image_size=64"),
    "pictures differ": (
        {"inputs": [Image.new("L", (9, 9)), Image.new("L", (8, 8))]},
        DatasetCorrupt,
        "image_size=64",
    ),
    "deep pictures": (
        {"inputs": [Image.new("I", (8, 8))] * 20},
        DatasetCorrupt,
        "more than 8 bits",
    ),
    "share": ({"test": 1.5}, ConfigError, "between 0 and 1"),
    "sites": ({"sites": ["a"]}, DatasetCorrupt, "sites: 1 for 20 inputs"),
    "one site": ({"sites": ["a"] * 20}, DatasetCorrupt, "leave sites out"),
    "groups": ({"groups": [1]}, DatasetCorrupt, "groups: 1 for 20 inputs"),
    "class names": ({"class_names": ["a"]}, DatasetCorrupt, "label 1 with 1 classes"),
    "other words": (
        {"labels": ["cat", "cow"] * 10, "class_names": ["cat", "dog"]},
        DatasetCorrupt,
        "cow is none of the class names",
    ),
    "test of another size": (
        {"test": (COLOUR[:, :4, :4], LABELS)},
        DatasetCorrupt,
        r"test: inputs of \[4, 4, 3\]",
    ),
    "no such column": (
        {"inputs": Table(image=PICTURES, label=[0]), "labels": "kind"},
        ConfigError,
        "no column 'kind'",
    ),
    "no labels": ({"inputs": Table(text=[]), "labels": None}, ConfigError, "none of its columns"),
    "text in a column": (
        {"inputs": Table(age=[1, 2], city=["a", "b"], label=[0, 1]), "labels": None},
        DatasetCorrupt,
        "numbers are needed in the columns age, city",
    ),
    "a number of 400 digits": (
        {"inputs": Table(age=[1, 10**400], label=[0, 1]), "labels": None},
        DatasetCorrupt,
        "numbers are needed in the columns age",
    ),
    "all parts": (
        {"inputs": SimpleNamespace(column_names={"train": ["image"]}), "labels": None},
        ConfigError,
        r'data\["train"\]',
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_line(case: str) -> None:
    changed, error, message = WRONG[case]
    arguments: dict[str, Any] = {"inputs": COLOUR, "labels": LABELS, **changed}
    with pytest.raises(error, match=message):
        Dataset.of(**arguments)


def test_images_of_numpy_say_what_to_do() -> None:
    with pytest.raises(DatasetCorrupt, match=r"not ndarray of uint8 .*Dataset\.of"):
        Images(COLOUR, LABELS)  # type: ignore[arg-type]


class OddPairs(torch.utils.data.Dataset[Any]):
    def __init__(self, label: Any) -> None:
        self.label = label

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        return {"x": 1} if self.label is None else (torch.zeros(5), self.label)


ROWS = RNG.random((20, 5))
MASKED = np.ma.masked_array(ROWS, mask=ROWS < 0.5)
GIVEN_WRONGLY: dict[str, tuple[dict[str, Any], str]] = {
    "a class for rows without a label": ({"labels": [None, "a"] * 10}, "row 0.* has none"),
    "a site for rows without a site": ({"sites": [1.0, np.nan] * 10}, "row 1.* has none"),
    "one patient for all without a patient": ({"groups": [None, "p"] * 10}, "row 0.* has none"),
    "two sites for a row": ({"sites": np.zeros((20, 2))}, "one name for each"),
    "numbers below a mask": ({"inputs": MASKED}, "masked"),
    "a sparse tensor": ({"inputs": torch.eye(20).to_sparse()}, "no plain array"),
    "a tensor without numbers": ({"inputs": torch.ones(20, 5, device="meta")}, "no plain array"),
    "one name for two classes": ({"class_names": ["a", "a"]}, "class_names: a occurs twice"),
    "a torch data set of words": (
        {"inputs": OddPairs("cat"), "labels": None},
        "a data set of torch",
    ),
    "a torch data set of dictionaries": ({"inputs": OddPairs(None), "labels": None}, "data set of"),
    "pictures of no size": ({"inputs": PICTURES, "image_size": 0}, "image_size must be"),
    "pictures of half a pixel": ({"inputs": PICTURES, "image_size": 8.5}, "image_size must be"),
    "pictures beyond memory": ({"inputs": PICTURES, "image_size": 10**6}, "image_size must"),
    "a test label that nobody has": ({"test": (ROWS[:2], [0, 2])}, "test: label 2"),
}


@pytest.mark.parametrize("kind", GIVEN_WRONGLY)
def test_what_would_be_guessed_is_refused(kind: str) -> None:
    given, message = GIVEN_WRONGLY[kind]
    with pytest.raises((ConfigError, DatasetCorrupt), match=message):
        Dataset.of(**{"inputs": ROWS, "labels": LABELS, **given})


def test_a_picture_that_breaks_off_is_refused_by_number() -> None:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (64, 64, 3), np.uint8)).save(file, "PNG")
    broken = Image.open(io.BytesIO(file.getvalue()[:3000]))
    with pytest.raises(DatasetCorrupt, match="picture 1 cannot be read"):
        Dataset.of([Image.new("RGB", (64, 64)), broken] * 10, LABELS)


def test_labels_beside_a_table() -> None:
    pd = pytest.importorskip("pandas")
    for labels in (LABELS, LABELS.tolist(), pd.Series(LABELS), iter(LABELS)):
        found = Dataset.of(pd.DataFrame(ROWS), labels)
        assert found.fingerprint == Dataset.of(ROWS, LABELS).fingerprint
    numbered = pd.DataFrame({**dict(enumerate(ROWS.T)), "y": LABELS})  # columns 0 to 4
    assert Dataset.of(numbered.rename(columns={"y": 5}), 5).fingerprint == found.fingerprint
    assert Dataset.of(numbered, "y").fingerprint == Dataset.of(ROWS, LABELS).fingerprint


def test_labels_of_bytes_are_words() -> None:
    assert Dataset.of(ROWS, np.array([b"cat", b"dog"] * 10)).class_names == ("cat", "dog")


def test_half_precision_tensors_are_numbers() -> None:
    found = Dataset.of(torch.from_numpy(ROWS).bfloat16(), LABELS)
    assert found.train.pixels.dtype == torch.float32


def test_a_table_with_more_cells_than_names(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "7,0,1\n8,1,0\n" * 10)  # pandas would shift the columns
    with pytest.raises(DatasetCorrupt, match="more cells than the first line has names"):
        Dataset.of(path, "y")


def test_a_table_of_an_impossible_size(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path = tmp_path / "a.csv"
    path.write_text("a,y\n")
    os.truncate(path, 30 * 2**30)
    with pytest.raises(DatasetCorrupt, match="larger than"):
        Dataset.of(path, "y")
