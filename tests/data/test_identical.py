"""The same picture twice: counted where it may deceive, and remembered by a run."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dcfl
from dcfl.data import DataSettings, Images, load_dataset
from dcfl.data.identical import TRAINED_ON, are_among, identical_pictures, read_digests
from dcfl.errors import DCFLError
from tests.command_line import Call
from tests.data.pictures import save

SMALL: dict[str, Any] = {
    "federation": {"rounds": 1},
    "training": {"batch_size": 8},
    "engine": {"workers": 1},
}


def deep(level: int) -> Image.Image:
    """16 bits in grey, with a pattern of its own."""
    rng = np.random.default_rng(level)
    return Image.fromarray(rng.integers(0, 2**16, (8, 8), dtype=np.uint16))


def clinic(folder: Path, patients: int = 12) -> Path:
    for patient in range(patients):
        for number in range(3):
            name = ("benign", "malignant")[patient % 2]
            save(folder / name / f"p{patient:02}" / f"{number}.png", deep(10 * patient + number))
    return folder


def settings_of(folder: Path) -> DataSettings:
    return DataSettings(dataset=f"folder:{folder}", image_size=8, clients=2)


def test_identical_pictures_are_counted(tmp_path: Path, cli: Call) -> None:
    """16-bit pictures with names of their own: two patients, two labels, train and test."""
    clinic(tmp_path / "train")
    for number in range(4):
        save(tmp_path / "test" / "benign" / "q1" / f"{number}.png", deep(1000 + number))
    check = ("data", "check", f"data.dataset=folder:{tmp_path}", "data.image_size=8")
    assert identical_pictures(load_dataset(settings_of(tmp_path))) == (0, 0, 0)
    assert "\nidentical" not in cli(*check)[1]
    save(tmp_path / "train" / "malignant" / "p01" / "label.png", deep(0))  # p00 is benign
    save(tmp_path / "train" / "benign" / "p02" / "patient.png", deep(1))  # p00 is not p02
    save(tmp_path / "train" / "benign" / "p02" / "own.png", deep(20))  # of p02 itself: no matter
    for number in range(2):
        save(tmp_path / "train" / "benign" / "p00" / f"t{number}.png", deep(1000 + number))
    found = identical_pictures(load_dataset(settings_of(tmp_path)))
    assert (*found,) == (2, 1, 4)
    said = "2 both to train on and to test on, 1 under two labels, 4 in two groups"
    assert f"identical  {said}" in cli(*check)[1]
    assert json.loads(cli(*check, "--json")[1])["identical"] == found._asdict()
    with pytest.warns(UserWarning, match=f"identical pictures: {said}") as told:
        dcfl.run(data=settings_of(tmp_path), **SMALL)
    assert sum("identical" in str(one.message) for one in told) == 1


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_study_is_warned_once(parallel: int, tmp_path: Path) -> None:
    """Not by every cell, and not by every process."""
    clinic(tmp_path / "all")
    save(tmp_path / "all" / "benign" / "p99" / "again.png", deep(10))
    settings = ("data.image_size=8", "data.clients=2", "federation.rounds=1", "output.report=false")
    words = (
        "compare",
        f"data.dataset=folder:{tmp_path / 'all'}",
        *settings,
        "training.batch_size=8",
    )
    cells = ("--methods", "fedavg,fedprox", "--seeds", "0,1", "--parallel", str(parallel))
    command = [sys.executable, "-m", "dcfl", *words, *cells, "--out", str(tmp_path / "out")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert found.stderr.count("identical pictures: ") == 1


def test_a_run_remembers_what_it_was_trained_on(tmp_path: Path, cli: Call) -> None:
    clinic(tmp_path / "all")
    result = dcfl.run(data=settings_of(tmp_path / "all"), out=tmp_path / "run", **SMALL)
    dataset = load_dataset(settings_of(tmp_path / "all"))
    digests = read_digests(result.folder)
    assert digests is not None
    assert len(digests) == len(dataset.train) == (result.folder / TRAINED_ON).stat().st_size // 8
    _, out, _ = cli("evaluate", result.folder, tmp_path / "all")
    assert f"trained on {len(dataset.train)} of these 36 images" in out
    assert "this is no test of it" in (result.folder / "report.html").read_text()
    _, out, _ = cli("evaluate", result.folder, "--json")
    assert json.loads(out)["trained_on"] == 0
    with pytest.warns(UserWarning, match="trained on"):
        dcfl.evaluate(result.folder, tmp_path / "all")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dcfl.evaluate(result.folder)


def test_a_warm_start_is_told_what_was_trained_on_and_remembers_both(tmp_path: Path) -> None:
    first = dcfl.run(data=settings_of(clinic(tmp_path / "first")), **SMALL)
    old = load_dataset(settings_of(tmp_path / "first")).train
    half = old.pixels[::2], old.labels[::2]
    rng = np.random.default_rng(1)
    pixels, labels = rng.integers(0, 256, (40, 8, 8, 3), np.uint8), [0, 1] * 20
    data = dcfl.Dataset.from_arrays(pixels, labels, test=half, class_names=["benign", "malignant"])
    weights = {"weights": str(first.folder)}
    expected = f"model.weights: trained on {len(half[1])} of the {len(half[1])} images"
    with pytest.warns(UserWarning, match=expected):
        second = dcfl.run(dataset=data, data={"clients": 2}, model=weights, **SMALL)
    seen = read_digests(second.folder)
    assert seen is not None
    assert {*seen.tolist()} == {*old.digests.tolist(), *data.train.digests.tolist()}


@pytest.mark.parametrize(
    ("content", "wrong"), [(b"1234567", "not a whole number of hashes"), (bytes(16), "in order")]
)
def test_a_damaged_file_is_named(content: bytes, wrong: str, tmp_path: Path) -> None:
    """A hostile one may be large and empty, in blocks that take no room on the disk."""
    (tmp_path / TRAINED_ON).write_bytes(content)
    with pytest.raises(DCFLError, match=wrong):
        read_digests(tmp_path)
    assert read_digests(tmp_path / "elsewhere") is None


def test_what_is_among_the_pictures_of_a_file() -> None:
    some = np.array([7, 0, 5, 2**64 - 1, 3], np.uint64)
    for seen in ([], [5], [0, 5], [3, 2**64 - 1], [4]):
        expected = [int(one) in seen for one in some]
        assert are_among(some, np.array(seen, np.uint64)).tolist() == expected


def test_equal_pixels_have_equal_digests() -> None:
    pixels = torch.randint(0, 256, (4, 8, 8, 1), dtype=torch.uint8)
    images = Images(torch.cat([pixels, pixels]), torch.zeros(8, dtype=torch.int64))
    assert (images.digests[:4] == images.digests[4:]).all()
    assert len({*images.digests.tolist()}) == 4
