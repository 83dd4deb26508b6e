"""Writing to disk: whole files or none, and errors that name the path."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from dcfl.errors import DCFLError, StorageError

PARTIAL = ".partial"  # ends the name of a file that is being written
PRIVATE_FILE, PUBLIC_FILE, PRIVATE_FOLDER = 0o600, 0o644, 0o700
_NO_LINKS_NO_WAITING = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # not on Windows


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the path."""
    try:
        yield
    except DCFLError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in reason:
            reason = f"{reason}; {_free(path)} free"
        raise StorageError(f"{path}: cannot be written ({reason})") from error


def _free(path: Path) -> str:
    existing = next(folder for folder in path.absolute().parents if folder.is_dir())
    return f"{shutil.disk_usage(existing).free / 1e6:,.1f} MB"


@contextmanager
def replacing(path: Path, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """A path to write to; readers see the old file or the whole new one, never half of it.

    `durable`: synced to the disk when this ends. `private`: readable by this user alone; otherwise
    the umask decides, even where a library creates files with a mode of its own.
    """
    if path.exists() and not path.is_file():  # as root, os.replace would even replace a device
        raise StorageError(f"{path}: cannot be written (there is something that is not a file)")
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with storage(path):
        try:
            mode = _create(partial, PRIVATE_FILE if private else 0o666)
            yield partial
            if stat.S_IMODE(partial.stat().st_mode) != mode:
                partial.chmod(mode)
            if durable:
                _sync(partial)
            os.replace(partial, path)
            if durable:
                sync_folder(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _create(path: Path, mode: int) -> int:
    """Create an empty file; returns its mode after the umask."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> None:
    """Make a folder for this user alone; OSError if it is another user's, or a link."""
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_FOLDER, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder of its own", str(path))
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(path))
    if (mode := stat.S_IMODE(status.st_mode)) & ~PRIVATE_FOLDER:
        path.chmod(mode & PRIVATE_FOLDER)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """So that the file's new name is on the disk too. Windows cannot open folders."""
    if os.name != "nt":
        _sync(path)


def write_whole(path: Path, text: str, durable: bool = False, private: bool = False) -> None:
    """In UTF-8; paths that are not valid UTF-8 keep their bytes."""
    with replacing(path, durable, private) as partial:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")


def open_to_append(path: Path, mode: Literal["a", "ab", "a+b"]) -> IO[Any]:
    """Open a file in a folder that may be somebody else's. OSError for a link, which could lead out
    of the folder, and for a pipe, which could block for ever."""

    def opener(name: str, flags: int) -> int:
        if os.path.islink(name):
            raise OSError(errno.ELOOP, "it is a link, which may lead anywhere", name)
        descriptor = os.open(name, flags | _NO_LINKS_NO_WAITING, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a file", name)
        return descriptor

    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=opener)


def strict_json(value: Any, indent: int | None = None) -> str:
    """Valid JSON: NaN and infinity, which the standard lacks, become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(value), indent=indent, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left behind. Only for the holder of the folder's lock."""
    for path in folder.rglob(".*"):
        # The second is what safetensors calls a file that it is writing.
        if path.name.endswith(PARTIAL) or re.fullmatch(r"\.tmp\w{6}", path.name):
            with storage(path):
                path.unlink(missing_ok=True)
