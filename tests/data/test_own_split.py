"""data.partition = "file:...": a split that another tool made, or that goes to one."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcfl.data import Dataset, DataSettings, load_dataset
from dcfl.data.splits import own_split as split_formats
from dcfl.data.splits.own_split import OwnSplit, own_split_of, read_own_split, split_text
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DCFLError, PartitionError
from tests.reliability.victims import SLOW, damaged

DIGITS = load_dataset(DataSettings())
IMAGES = len(DIGITS.train)


def by_file(path: Path, **other: Any) -> DataSettings:
    return DataSettings(partition=f"file:{path}", **{"min_size": 2, **other})


def loaded(path: Path, **other: Any) -> tuple[Dataset, Partition]:
    chosen = by_file(path, **other)
    dataset = load_dataset(chosen)
    return dataset, chosen.split(dataset)


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def lists(partition: Partition) -> list[list[int]]:
    return [partition.of(client).tolist() for client in range(len(partition))]


@st.composite
def splits(draw: st.DrawFn) -> list[list[int]]:
    """Some images in any order, each of one client, two or more each."""
    order = draw(st.permutations(range(60)))
    sizes = draw(st.lists(st.integers(2, 9), min_size=1, max_size=6))
    ends = np.cumsum(sizes)
    return [list(order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def test_mutated_splits_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    rng, dose = random.Random(1), 4_000 if SLOW else 100
    lines = []
    split = OwnSplit((np.arange(5), np.arange(5, 9)), ("north", "=south"), path=tmp_path / "s.json")
    originals = [
        (suffix, split_text(replace(split, path=tmp_path / f"s{suffix}")).encode())
        for suffix in (".json", ".csv")
    ] + [(".json", json.dumps({"0": [1, 2], "10": [3, 4]}).encode())]
    for _ in range(dose):
        suffix, content = rng.choice(originals)
        path = tmp_path / f"mutated{suffix}"
        path.write_bytes(damaged(content, rng))
        try:
            read_own_split(str(path)).fitted(DIGITS)
        except DCFLError as error:
            lines.append(len(str(error).splitlines()))
    assert {*lines} == {1}
    assert dose / 3 < len(lines) < dose


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=splits())
def test_any_split_comes_back_from_every_form(parts: list[list[int]], tmp_path: Path) -> None:
    source = written(tmp_path / "lists.json", parts)
    dataset, split = loaded(source)
    assert lists(split) == parts
    assert split.sha256 == Partition.of_parts([np.array(part) for part in parts]).sha256
    forms = {
        "object.json": json.dumps({str(n): part for n, part in enumerate(parts)}),
        "by-image.csv": "index,partition_id\n"
        + "".join(f"{image},{client}\n" for client, part in enumerate(parts) for image in part),
    }
    for name in ("ours.json", "ours.csv"):
        forms[name] = split_text(own_split_of(split, dataset, DIGITS, tmp_path / name, None))
    hashes = set()
    for name, text in forms.items():
        assert lists(loaded(written(tmp_path / name, text))[1]) == parts
        hashes.add(read_own_split(str(tmp_path / name)).sha256)
    assert hashes == {read_own_split(str(source)).sha256}


@pytest.mark.parametrize(
    "part",
    [
        {"classes": 4},
        {"train_images": 500},
        {"holdout": 0.3, "seed": 5},
        {"classes": 6, "train_images": 400, "holdout": 0.2},
    ],
)
def test_a_part_of_the_data_keeps_its_owners(part: dict[str, Any], tmp_path: Path) -> None:
    """The pixels say who owns what: whoever has an image of the part had it in the whole."""
    path = tmp_path / "split.json"
    everything = DataSettings(alpha=10.0).split(DIGITS)
    path.write_text(split_text(own_split_of(everything, DIGITS, DIGITS, path, None)))
    owner = {
        DIGITS.train.pixels[row].numpy().tobytes(): client
        for client, rows in enumerate(lists(everything))
        for row in rows
    }
    dataset, split = loaded(path, **part)
    plain = load_dataset(DataSettings(**part))
    assert torch.equal(dataset.train.pixels, plain.train.pixels)
    assert torch.equal(dataset.test.pixels, plain.test.pixels)
    assert sum(split.sizes) > 0.95 * len(dataset.train)
    for client, rows in enumerate(lists(split)):
        for row in rows:
            assert owner[dataset.train.pixels[row].numpy().tobytes()] == client
    again = tmp_path / "part.json"
    again.write_text(split_text(own_split_of(split, dataset, DIGITS, again, None)))
    assert lists(loaded(again, **part)[1]) == lists(split)


def test_clients_have_names_or_numbers(tmp_path: Path) -> None:
    named = read_own_split(
        str(written(tmp_path / "a.csv", "client,label\nnorth,1\nsouth,0\nnorth,1\n"))
    )
    assert (named.names, [part.tolist() for part in named.parts]) == (
        ("north", "south"),
        [[0, 2], [1]],
    )
    flower = read_own_split(str(written(tmp_path / "a.json", {"10": [3], "2": [1], "0": [0]})))
    assert [part.tolist() for part in flower.parts] == [[0], [1], [3]]
    bare = read_own_split(str(written(tmp_path / "b.csv", "5,1\n6,0\n")))
    assert ([part.tolist() for part in bare.parts], bare.names) == ([[6], [5]], ())


FEW = list(range(2, 12))
BAD: dict[str, tuple[str, Any, str]] = {
    "overlap": (".json", [[0, 1], [1, 2]], "image 1 belongs to client 0 and to client 1"),
    "twice": (".json", [[0, 1, 0]], "image 0 belongs to client 0 twice"),
    "negative": (".json", [[0, 1], [-3, 4]], "client 1 has image -3, and numbers begin at 0"),
    "beyond": (".json", [[0, 1], [IMAGES, 4]], "1,442 training images.*another data set"),
    "giant": (".json", [[0, 10**30]], "which no data set has"),
    "empty client": (".json", [[0, 1], []], "client 1 has no images"),
    "small client": (".json", [[0, 1], [5]], "client 1 has 1 images.*leave the client out"),
    "no clients": (".json", [], "it has no clients"),
    "text": (".json", [[0, "1"]], "client 0 has '1' among its image numbers"),
    "truth": (".json", [[True, 2]], "client 0 has True"),
    "nothing": (".json", [[0, None]], "client 0 has None"),
    "halves": (".json", [[0, 1.5]], "client 0 has 1.5"),
    "no list": (".json", {"a": 3}, "client a has no list"),
    "no JSON": (".json", "[[0, 1]", "not a split: Expecting"),
    "deep": (".json", "[" * 100_000, "not a split"),
    "a number": (".json", "3", "neither lists"),
    "a client twice": (".json", '{"a": [0], "a": [1]}', "'a' occurs twice"),
    "control": (".json", '{"\\u001b[2J": 3}', r"client \\x1b\[2J has no list"),
    "with test images": (".json", {"format": "dcfl-split-1", "test": [0]}, "no longer"),
    "later format": (".json", {"format": "dcfl-split-9"}, "'dcfl-split-9' is not known here"),
    "ours without data": (".json", {"format": "dcfl-split-1", "clients": [[0]]}, "no data set"),
    "no columns": (".csv", "path,label\na.png,3\n", "image,client"),
    "no number": (".csv", "image,client\na.png,3\n", "line 2 has 'a.png' instead of"),
    "short line": (".csv", "image,client\n3\n", "line 2 has 1 cells"),
    "nameless": (".csv", "image,client\n3,a\n4, \n", "line 3 names no client"),
    "open quote": (".csv", 'image,client\n"3\n', "not a split"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_one_line_that_names_the_file(case: str, tmp_path: Path) -> None:
    ending, content, why = BAD[case]
    path = written(tmp_path / f"split{ending}", content)
    with pytest.raises(PartitionError, match=why) as refused:
        loaded(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


ALIKE = f"{'a' * 300}%s{'b' * 300}"  # as they are shown, without their middle


@pytest.mark.parametrize("numbers", [[0, 1], [-3, 5], [IMAGES, 5]])
def test_clients_whose_names_are_alike_are_all_looked_at(
    numbers: list[int], tmp_path: Path
) -> None:
    path = written(tmp_path / "split.json", {ALIKE % 1: numbers, ALIKE % 2: [0, 1]})
    with pytest.raises(PartitionError, match=r"belongs to client|has image"):
        loaded(path)


@pytest.mark.parametrize(
    ("name", "why"),
    [("none.json", "no such file"), ("split.txt", "must end in"), ("d.json", "not a")],
)
def test_a_file_that_is_none(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "d.json").mkdir()
    with pytest.raises(ConfigError, match=why):
        loaded(tmp_path / name)


def test_a_file_out_of_all_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_formats, "LARGEST_FILE", 100)
    with pytest.raises(PartitionError, match="larger than"):
        loaded(written(tmp_path / "split.json", [FEW * 10]))


def test_a_file_for_another_data_set(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(
        split_text(own_split_of(DataSettings().split(DIGITS), DIGITS, DIGITS, path, None))
    )
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0))
    shuffled = replace(DIGITS, train=DIGITS.train[order])
    for other, why in (
        (shuffled, "in another order"),
        (DIGITS.trained_on(9, seed=0), "a part of the data"),
    ):
        with pytest.raises(DCFLError, match=why):
            by_file(path).fitted(other)
    fewer = replace(DIGITS, train=DIGITS.train[:1000])
    with pytest.raises(
        PartitionError, match="is for digits with 1,442 images, and digits has 1,000"
    ):
        by_file(path).fitted(fewer)


def test_data_with_a_split_refuses_another_unread(tmp_path: Path) -> None:
    remote = by_file(tmp_path / "none.json", dataset="remote", class_names=("a", "b"))
    with pytest.raises(ConfigError, match="remote comes with its own split"):
        load_dataset(remote)


def test_only_schemes_and_files_are_known() -> None:
    for wrong in ("dirichlet", "file:", "folder:x"):
        with pytest.raises(ConfigError, match=r"data\.partition must be dirichlet-balanced"):
            DataSettings(partition=wrong)


def test_a_csv_is_what_a_spreadsheet_reads(tmp_path: Path) -> None:
    names = ('a "b", c', "=cmd|d")
    split = OwnSplit((np.array([3, 1]), np.array([2])), names, path=tmp_path / "s.csv")
    written(split.path, split_text(split))
    with split.path.open(newline="") as stream:
        assert [*csv.reader(stream)][1:] == [["3", 'a "b", c'], ["1", 'a "b", c'], ["2", "'=cmd|d"]]
    assert read_own_split(str(split.path)).names == split.names
