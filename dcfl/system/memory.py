"""What glibc does with freed memory. Without glibc these functions do nothing."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any


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
    """Bytes of a process and its descendants; shared memory counts once (PSS)."""
    return sum(_from_rollup(member, "Pss:") for member in _family(pid))


def anonymous_bytes_of(pid: int) -> int:
    """Bytes of a process that no file holds too, such as libraries' code."""
    return _from_rollup(pid, "Anonymous:")


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    children: list[int] = []
    with suppress(OSError):  # it has just exited
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):  # so has a thread of it
                children += map(int, (task / "children").read_text().split())
    return [pid, *(member for child in children for member in _family(child))]


def _from_rollup(pid: int, kind: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))
    except (OSError, StopIteration):
        return 0


def available_bytes() -> int:
    """Free memory of this machine, or of the container if that has less."""
    machine = sys.maxsize
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        machine = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
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
        ("memory.max", ("anon", "kernel")),
        ("memory.limit_in_bytes", ("total_rss",)),
    ):
        with suppress(OSError, ValueError):  # "max" is not a number
            total = int((group / limit).read_text())
            lines = (group / "memory.stat").read_text().splitlines()
            used = dict(line.split() for line in lines)
            return total - sum(int(used.get(kind, 0)) for kind in kinds)
    return sys.maxsize


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """For a process that trains: returning a large model's memory to the system after every batch
    and faulting it in again for the next one costs some percent of its time."""
    if mallopt := _libc("mallopt"):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_freed_memory_back() -> None:
    """For a process that waits for workers: they can use what its sums took."""
    if trim := _libc("malloc_trim"):
        trim(0)


def _libc(name: str) -> Callable[..., Any] | None:
    try:
        function: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function
