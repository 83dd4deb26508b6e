"""What glibc does with freed memory. Without glibc these functions do nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

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
