"""Who may read what we write: one rule for every file of a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcfl.errors import StorageError
from dcfl.system.storage import remove_partial, replacing, write_whole
from tests.reliability.victims import experiment, stopped, train


@pytest.fixture(params=[0o022, 0o077, 0o007], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_mode & 0o777
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_all_files_of_a_run_folder_follow_the_umask(umask: int, tmp_path: Path) -> None:
    """safetensors creates its files with 0600, whatever the umask."""
    train(experiment(tmp_path / "ended", "moon"))
    stopped(experiment(tmp_path / "stopped", "moon", memory_budget=0))
    found = {**modes(tmp_path / "ended"), **modes(tmp_path / "stopped")}
    assert {"model.safetensors", "checkpoint-000001.safetensors", "summary.json"} <= found.keys()
    assert any(name.startswith("memories/") for name in found)
    assert set(found.values()) == {0o666 & ~umask}, found


def test_private_files_do_not(umask: int, tmp_path: Path) -> None:
    write_whole(tmp_path / "key", "secret", private=True)
    assert modes(tmp_path) == {"key": 0o600}


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    left_behind = tmp_path / ".key.partial"
    left_behind.write_text("by a process that was killed")
    left_behind.chmod(0o644)
    with replacing(tmp_path / "key", private=True) as partial:
        assert partial.stat().st_mode & 0o777 == 0o600
        assert partial.read_bytes() == b""


def test_only_what_was_being_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    names = {".a.json.partial", ".tmpabc123", "inside/.b.partial"}
    kept = {"mine.partial", ".tmp", ".hidden", "inside/tmpabc123"}
    for name in names | kept:
        (tmp_path / name).write_text("")
    remove_partial(tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == kept


def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    """Root may put a pipe away, or /dev/full."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link", tmp_path, Path()):
        with pytest.raises(StorageError, match="not a file"):
            write_whole(path, "page")
    assert pipe.is_fifo()
    assert (tmp_path / "link").is_symlink()
