"""A2: a full, broken or read-only disk costs the run, and nothing that was there before."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from dcfl.errors import StorageError
from dcfl.runs.checkpoints import Checkpoints
from dcfl.runs.folder import RecordedRun
from dcfl.system import tensor_files
from dcfl.system.locks import lock
from tests.reliability.victims import (
    SLOW,
    SMALL,
    command,
    exit_code,
    experiment,
    go_on,
    outcome,
    partial_files,
    resume,
    rows_in,
    same,
    stopped,
    train,
)

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
MOON = {"method": "moon", "rounds": 3, "memory_budget": 0}


class Failing:
    """Everything that puts bytes on a disk, failing at the n-th time, and from then on."""

    def __init__(self, at: int, number: int) -> None:
        self._steps, self._at, self._error = count(1), at, OSError(number, os.strerror(number))
        self.steps = 0

    def _due(self) -> bool:
        self.steps = next(self._steps)
        return 0 < self._at <= self.steps

    def plain(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._due():
                raise OSError(self._error.errno, self._error.strerror)
            return original(*args, **kwargs)

        return step

    def writing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Half of it, and then the error."""

        def step(path: Path, text: str, *args: Any, **kwargs: Any) -> Any:
            if self._due():
                original(path, text[: len(text) // 2], *args, **kwargs)
                raise OSError(self._error.errno, self._error.strerror)
            return original(path, text, *args, **kwargs)

        return step

    def opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = set(mode) & set("wax+")
            if writes and ".lock" not in path.name and self._due():
                raise OSError(self._error.errno, self._error.strerror, str(path))
            return original(path, mode, *args, **kwargs)

        return step

    def saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """As safetensors says it, after half of the file."""

        def step(tensors: Any, path: Path, *args: Any, **kwargs: Any) -> Any:
            original(tensors, path, *args, **kwargs)
            if self._due():
                os.truncate(path, path.stat().st_size // 2)
                number, reason = self._error.errno, self._error.strerror
                raise SafetensorError(
                    f"Error while serializing: I/O error: {reason} (os error {number})"
                )

        return step


@contextmanager
def failing(at: int, number: int = errno.EIO) -> Iterator[Failing]:
    fault = Failing(at, number)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync", "mkdir"):
            patch.setattr(os, name, fault.plain(getattr(os, name)))
        patch.setattr(Path, "write_text", fault.writing(Path.write_text))
        patch.setattr(Path, "open", fault.opening(Path.open))
        patch.setattr(tensor_files, "save_file", fault.saving(tensor_files.save_file))
        yield fault


def steps_of(folder: Path) -> int:
    with failing(0) as fault:
        train(experiment(folder, **MOON))
    return fault.steps


def test_an_error_at_each_write(tmp_path: Path) -> None:
    """At every fifth or sixth, the errors in turn; at all of them if there is time."""
    train(experiment(tmp_path / "whole", **MOON))
    wanted, bad = outcome(tmp_path / "whole"), dict[str, list[int]]()
    steps = steps_of(tmp_path / "count")
    assert steps > 50
    cases = [(step, number) for step in range(1, steps + 1) for number in ERRORS]
    for step, number in cases if SLOW else cases[::16]:
        folder = tmp_path / str(step)
        try:
            survive_an_error(folder, step, number)
            go_on(experiment(folder, **MOON))
            same(folder, wanted)
        except Exception as error:
            bad.setdefault(str(error).replace(str(folder), "DIR"), []).append(step)
        shutil.rmtree(folder, ignore_errors=True)
    assert not bad, "; ".join(f"{what} {steps}" for what, steps in bad.items())


def survive_an_error(folder: Path, step: int, number: int) -> None:
    with failing(step, number), pytest.raises(StorageError) as refused:
        train(experiment(folder, **MOON))
    message = str(refused.value)
    assert refused.value.exit_code == 3
    del refused
    gc.collect()  # test_a_locked_folder_on_a_broken_disk_is_free_again is about that
    assert message.startswith(str(folder)), message
    assert os.strerror(number) in message
    assert ("MB free" in message) == (number == errno.ENOSPC), message
    assert "\n" not in message
    assert not partial_files(folder)
    if rows_in(folder) > 1:
        found = Checkpoints(folder).recover_newest()
        assert found is not None
        assert found[0].progress.round >= 1
        assert not found[1]  # none of them is damaged


def test_a_resume_that_meets_a_broken_disk_can_be_resumed(tmp_path: Path) -> None:
    train(experiment(tmp_path / "whole", **MOON))
    folder = stopped(experiment(tmp_path / "run", **MOON), 1)
    for step in (1, 4, 9, 14):
        with failing(step), pytest.raises(StorageError):
            resume(folder)
        assert not partial_files(folder)
    resume(folder)
    same(folder, outcome(tmp_path / "whole"))


def test_a_disk_that_is_full_when_the_result_is_written_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients kept is needed until then: the last rounds have no checkpoint."""
    settings = {**MOON, "checkpoint": 2}
    train(experiment(tmp_path / "whole", **settings))
    usual, full = tensor_files.save_file, Failing(1, errno.ENOSPC).saving(tensor_files.save_file)

    def save(tensors: Any, path: Path, *args: Any) -> None:
        (full if "model.safetensors" in path.name else usual)(tensors, path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(tensor_files, "save_file", save)
        with pytest.raises(StorageError, match=r"model\.safetensors"):
            train(experiment(tmp_path / "run", **settings))
    resume(tmp_path / "run")
    same(tmp_path / "run", outcome(tmp_path / "whole"))


def test_a_locked_folder_on_a_broken_disk_is_free_again(tmp_path: Path) -> None:
    with failing(3), pytest.raises(StorageError) as refused:
        train(experiment(tmp_path / "run"))
    lock(tmp_path / "run").close()  # although somebody still holds on to the error
    assert refused.value.__traceback__


def test_through_the_command_line(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    with failing(25, errno.ENOSPC):
        assert exit_code(command("run", *SMALL, "--out", str(folder), said=said)) == 3
    lines = [line for line in said.read_text().splitlines() if line.startswith("dcfl: ")]
    assert len(lines) == 1, said.read_text()
    assert str(folder) in lines[0]
    assert "No space left on device" in lines[0]
    assert "MB free" in lines[0]
    assert "Traceback" not in said.read_text()
    assert exit_code(command("resume", str(folder), said=said)) == 0
    assert rows_in(folder) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where nobody may")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            train(experiment(tmp_path / "run"))
    finally:
        tmp_path.chmod(0o700)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real one, of 256 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "dcfl-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("left", range(2, 18, 1 if SLOW else 8))
def test_a_full_disk(left: int, small_disk: Path, tmp_path: Path) -> None:
    """So many pages are left; wherever the run meets the end of the disk, it goes on from there."""
    train(experiment(tmp_path / "whole", **MOON))
    page, folder = 4096, small_disk / "run"
    (small_disk / "taken").write_bytes(bytes(256 * 1024 - left * page))
    with pytest.raises(StorageError, match=r"No space left on device.* MB free"):
        train(experiment(folder, **MOON))
    assert not partial_files(folder)
    (small_disk / "taken").unlink()
    go_on(experiment(folder, **MOON))
    same(folder, outcome(tmp_path / "whole"))


def test_readers_see_a_run_that_met_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with failing(60, errno.ENOSPC), pytest.raises(StorageError):
        train(experiment(folder, **MOON))
    recorded = RecordedRun.open(folder)
    assert [row["round"] for row in recorded.rounds] == list(range(1, len(recorded.rounds) + 1))
    assert recorded.summary is None
