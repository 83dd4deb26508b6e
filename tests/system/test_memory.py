"""What the system says about memory, and what processes take of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

from dcfl.system import memory
from dcfl.system.memory import MemoryWatch, available_bytes, memory_of


def system(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """A system with 4096 free bytes that says these things of itself, and nothing else."""
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=4096))
    for name, text in files.items():
        path = folder / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(memory, "Path", lambda name: folder / name[1:])


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [("max", "5", 4096), ("9000", "8000", 1000), ("9000", "1", 4096), ("9", "10", 0)],
)
def test_memory_is_that_of_the_machine_or_the_container(
    limit: str, used: str, free: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stat = f"anon {used}\nfile 123456789"
    cgroup = {"/sys/fs/cgroup/memory.max": limit, "/sys/fs/cgroup/memory.stat": stat}
    system(tmp_path, monkeypatch, cgroup)
    assert available_bytes() == free


OLD = ("memory.limit_in_bytes", "total_rss 8000\nrss 1\ntotal_cache 5")
NEW = ("memory.max", "anon 7000\nkernel 1000\nfile 5")


@pytest.mark.parametrize(
    ("own", "group", "files"),
    [
        ("4:memory:/", "memory", OLD),
        ("9:name=systemd:/\n4:memory:/jobs/7\n0::/", "memory/jobs/7", OLD),
        ("4:memory:/jobs/7", "memory/jobs", OLD),  # a limit of the group around it
        ("4:memory:/docker/abc", "memory", OLD),  # the container sees its own group as the root
        ("0::/user.slice/job.scope", "user.slice/job.scope", NEW),
        ("0::/user.slice/job.scope", "user.slice", NEW),
        ("0::/../outside", "", NEW),
    ],
)
def test_memory_is_limited_by_control_groups_of_either_version(
    own: str, group: str, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit, stat = files
    folder = f"/sys/fs/cgroup/{group}"
    known = {
        "/proc/self/cgroup": own,
        f"{folder}/{limit}": "9000",
        f"{folder}/memory.stat": stat,
    }
    system(tmp_path, monkeypatch, known)
    assert available_bytes() == 1000


@pytest.mark.skipif(sys.platform != "linux", reason="PSS is in Linux's /proc")
def test_a_child_counts_and_the_peak_outlives_it() -> None:
    before = memory_of(os.getpid())
    assert before > 0
    # Far more than the test's own process gives back or shares anew in the meantime.
    hold = "data = b'x' * (3 * 10**8); print(1, flush=True); input()"
    with MemoryWatch(os.getpid(), every=0.01) as watch:
        child = subprocess.Popen(
            [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        assert memory_of(os.getpid()) > before + 2 * 10**8
        deadline = monotonic() + 60  # on a busy machine, the watch comes late
        while watch.peak < before + 2 * 10**8 and monotonic() < deadline:
            sleep(0.01)
        child.communicate(b"\n")
    assert watch.peak > before + 2 * 10**8
    assert memory_of(os.getpid()) < watch.peak - 10**8


def test_a_process_that_is_gone_takes_nothing() -> None:
    assert memory_of(2**30) == 0
