"""Names of folders that say which settings a run has."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LONGEST_NAME = 150  # characters; file systems allow about 255 bytes


def marks(settings: Mapping[str, Any], beside: Iterable[str] = ()) -> Iterator[str]:
    """One per setting, such as `lr0.1`. The table is left out where no other key, of these or
    `beside` them, has the same name."""
    uses = Counter(key.partition(".")[2] for key in {*settings, *beside})
    for key, value in settings.items():
        short = key.partition(".")[2]
        yield _mark(short if uses[short] == 1 else key, value)


def _mark(key: str, value: Any) -> str:
    if isinstance(value, float | int):
        short = f"{value:g}"
        return f"{key}{short if float(short) == value else value}"
    return f"{key}-{re.sub(r'[^A-Za-z0-9.]+', '-', str(value)).strip('-')}"


def folder_name(*parts: str) -> str:
    """Cut short, with a hash of the rest, where it would be too long for a file system."""
    name = "-".join(parts)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
