"""Writing to disk: whole files or none, and what the disk refuses is said with the path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcfl.errors import DCFLError, StorageError


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """What the disk refuses becomes a StorageError that names the path."""
    try:
        yield
    except DCFLError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror or error})") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; readers see the old file or the whole new one, never half of it."""
    partial = path.with_name(f".{path.name}.partial")
    with storage(path):
        try:
            yield partial
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
