"""How busy this machine is with other things."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

COUNTED = Path("/proc/stat")
WATCHED_SECONDS = 1.0


def busy_cores(seconds: float = WATCHED_SECONDS) -> float:
    """Cores at work while this process sleeps for so long; where the system does not count their
    time, the load of the last minute; 0 if that is not known either."""
    with suppress(OSError, ValueError, IndexError, ZeroDivisionError):
        idle, total = _ticks()
        time.sleep(seconds)
        idle_after, total_after = _ticks()
        return (1 - (idle_after - idle) / (total_after - total)) * (os.cpu_count() or 1)
    with suppress(OSError, AttributeError):  # Windows has none
        return os.getloadavg()[0]
    return 0.0


def _ticks() -> tuple[int, int]:
    """Of all cores since the machine was started: idle or waiting for a disk, and in all."""
    numbers = [int(part) for part in COUNTED.read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)
