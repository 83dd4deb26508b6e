"""What processes take of the memory, what is free, and what glibc does with freed memory."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import psutil


class MemoryWatch:
    """Samples the memory of a process and its descendants, by default twice a second; also at the
    beginning and at the end."""

    def __init__(self, pid: int, every: float = 0.5) -> None:
        self.peak = 0  # bytes
        self._pid, self._every, self._over = pid, every, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> MemoryWatch:
        self.peak = memory_of(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            over = self._over.wait(self._every)
            self.peak = max(self.peak, memory_of(self._pid))
            if over:
                return


def memory_of(pid: int) -> int:
    """Bytes of a process and its descendants; memory that they share counts once where the system
    tells so (PSS)."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for one in family:
        with suppress(psutil.Error):  # it has just exited, or is another user's
            memory = one.memory_full_info()
            total += getattr(memory, "pss", memory.uss)  # uss: all that ends with the process
    return total


def anonymous_bytes() -> int:
    """Bytes of this process that no file holds too, such as libraries' code."""
    memory = psutil.Process().memory_info()
    resident: int = memory.rss
    return resident - getattr(memory, "shared", 0)


def available_bytes() -> int:
    """Free memory of this machine, or of the container if that has less."""
    machine: int = psutil.virtual_memory().available
    return max(0, min([machine, *map(_free_bytes_of, _memory_groups())]))


def _memory_groups() -> list[Path]:
    """The folders of this process's control group and of its parents, for either version; a
    container sees its own group as the root."""
    roots = {"": Path("/sys/fs/cgroup"), "memory": Path("/sys/fs/cgroup/memory")}
    folders = list(roots.values())
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kind, path = line.split(":", 2)
            group = PurePosixPath(path.lstrip("/"))
            if kind in roots:
                folders += [roots[kind] / name for name in (group, *group.parents)]
    return folders


def _free_bytes_of(group: Path) -> int:
    """What a control group may still use; cached files do not count, as they can be dropped."""
    for limit, kinds in (
        ("memory.max", ("anon", "shmem", "kernel")),
        ("memory.limit_in_bytes", ("total_rss", "total_shmem")),
    ):
        with suppress(OSError, ValueError):  # "max" is not a number
            total = int((group / limit).read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            used = dict(line.split() for line in lines)
            return total - sum(int(used.get(kind, 0)) for kind in kinds)
    return sys.maxsize


# Without glibc these functions do nothing.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Keep what is freed, in a process that trains: returning a large model's memory to the system
    after every batch and faulting it in again for the next one costs some percent of its time."""
    if mallopt := _libc("mallopt"):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_freed_memory_back() -> None:
    """Give it to the workers that this process waits for: they can use what its sums took."""
    if trim := _libc("malloc_trim"):
        trim(0)


def _libc(name: str) -> Callable[..., Any] | None:
    try:
        function: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function
