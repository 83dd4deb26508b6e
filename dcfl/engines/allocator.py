"""What the C library does with freed memory, where it is glibc; nothing elsewhere."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """For a process that trains: giving the maps of a large model back after every batch and
    faulting them in again for the next costs some percent of its time."""
    if mallopt := _libc("mallopt"):
        mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_freed_memory_back() -> None:
    """For a process that waits for others: what a round's sums took is theirs until the next."""
    if trim := _libc("malloc_trim"):
        trim(0)


def _libc(name: str) -> Callable[..., Any] | None:
    try:
        function: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function
