"""Pipes, devices and files of gigabytes where a data file is named: one line, at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcfl.cli.main import main
from dcfl.data import DataSettings, load_dataset
from dcfl.data.readers.npz import read_arrays
from dcfl.data.splits import own_split
from dcfl.errors import DCFLError, PartitionError
from tests.data.pictures import class_folders, tiny_imagenet

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no such files there")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    """60 GB, of which none is on the disk."""
    with path.open("wb") as stream:
        os.truncate(stream.fileno(), 60_000_000_000)


def folder(path: Path) -> None:
    path.mkdir()


NAMED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "a.csv": lambda file: {"dataset": f"folder:{file.parent / 'own'}", "group": str(file)},
    "b.csv": lambda file: {"partition": f"file:{file}"},
    "b.json": lambda file: {"partition": f"file:{file}"},
    "c.npz": lambda file: {"dataset": f"npz:{file}"},
    "own/a/9.png": lambda file: {"dataset": f"folder:{file.parents[1]}"},
    "own/a/9.dcm": lambda file: {"dataset": f"folder:{file.parents[1]}"},
    "tiny-imagenet-200/words.txt": lambda file: {
        "dataset": "tiny-imagenet",
        "path": str(file.parents[1]),
    },
}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (name, make)
        for name in NAMED
        for make in (pipe, device, huge, folder)
        if make is not folder or not name.endswith((".png", ".dcm"))  # folders may be called so
    ],
)
def test_what_is_no_data_file_is_refused_at_once(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    class_folders(tmp_path / "own", a=4, b=4)
    (tiny_imagenet(tmp_path) / "words.txt").unlink()
    file = tmp_path / name
    make(file)
    began = time.monotonic()
    settings = DataSettings(**NAMED[name](file))
    with pytest.raises(DCFLError, match=r"^[^\n]+$"):
        load_dataset(settings)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("make", [pipe, device, huge])
def test_a_stored_split_that_is_none(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "partition.npz")
    with pytest.raises(DCFLError, match=r"^[^\n]+$"):
        read_arrays(tmp_path / "partition.npz", ("indices",))


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--out", "there"),
        ("run", "--dry-run"),
        ("partition",),
        ("data", "check"),
        ("compare", "--methods", "fedavg,dcfl-sw", "--plan"),
        ("sweep", "training.lr=0.1,0.2", "--plan", "--out", "there"),
        ("run", "data.dataset=remote", "engine.name=flower", 'data.class_names=["a","b"]'),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_more_clients_than_there_can_be_are_refused_at_once(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["dcfl", *words, f"data.clients={2**31 - 1}"])
    began = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "data.clients must lie in 1 to 1,000,000" in line
    assert time.monotonic() - began < 2
    assert not any(tmp_path.iterdir())


def test_a_split_with_more_clients_than_there_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_split, "MOST_CLIENTS", 2)
    (tmp_path / "split.json").write_text("[[0], [1], []]")
    with pytest.raises(PartitionError, match="more than 2 clients"):
        own_split.read_own_split(str(tmp_path / "split.json"))
