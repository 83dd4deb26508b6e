"""What processes take of the memory."""

from __future__ import annotations

import threading
from contextlib import suppress

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
