"""Writing to disk: whole files or none, one writer per folder, what the disk refuses is said."""

from __future__ import annotations

import errno
import fcntl
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
from weakref import WeakSet

from dcfl.errors import DCFLError, RunLocked, StorageError

PARTIAL = ".partial"  # ends the name of a file that is being written
LOCK = ".lock"
PRIVATE_FILE, PUBLIC_FILE, PRIVATE_FOLDER = 0o600, 0o644, 0o700


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """What the disk refuses becomes a StorageError that names the path."""
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
    there = next(folder for folder in path.absolute().parents if folder.is_dir())
    return f"{shutil.disk_usage(there).free / 1e6:,.1f} MB"


@contextmanager
def replacing(path: Path, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """A path to write to; readers see the old file or the whole new one, never half of it.

    `durable`: it is on the disk, not only on its way there, when this ends. `private`: for this
    user alone; else the umask decides, also where a library creates files with a mode of its own.
    """
    if path.exists() and not path.is_file():  # os.replace would put a device away, if it may
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
                _sync(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _create(path: Path, mode: int) -> int:
    """An empty file; the mode that the umask has left of what was asked for."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def private_folder(path: Path) -> None:
    """Make it, for this user alone; OSError if it is somebody else's, or only leads elsewhere."""
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_FOLDER, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder of its own", str(path))
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to somebody else", str(path))
    if (mode := stat.S_IMODE(status.st_mode)) & ~PRIVATE_FOLDER:
        path.chmod(mode & PRIVATE_FOLDER)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str, durable: bool = False, private: bool = False) -> None:
    """In UTF-8, but for paths that are not: they keep the bytes that they have on the disk."""
    with replacing(path, durable, private) as partial:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")


def open_to_append(path: Path, mode: Literal["a", "a+", "ab"]) -> IO[Any]:
    """A file in a folder that may be somebody else's: a link would lead out of it, and a pipe would
    wait for ever. OSError for both."""

    def opener(name: str, flags: int) -> int:
        if os.path.islink(name):
            raise OSError(errno.ELOOP, "it is a link, which may lead anywhere", name)
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a file", name)
        return descriptor

    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=opener)


def strict_json(value: Any, indent: int | None = None) -> str:
    """As the standard has it: NaN and infinity, which it has no words for, are null."""
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
    """What a process that was killed left behind. Only for who holds the folder's lock."""
    for path in folder.rglob(".*"):
        # The second is how safetensors calls what it is writing.
        if path.name.endswith(PARTIAL) or re.fullmatch(r"\.tmp\w{6}", path.name):
            with storage(path):
                path.unlink(missing_ok=True)


_HELD: WeakSet[IO[str]] = WeakSet()


def lock(folder: Path) -> IO[str]:
    """Held until it is closed, or this process ends in whatever way; RunLocked if somebody has it.

    By the kernel: there is nothing to clear up after a kill.
    """
    path = folder / LOCK
    with storage(path):
        file: IO[str] = open_to_append(path, "a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        holder = file.read(100).strip() or "another process"
        file.close()
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StorageError(f"{path}: cannot be locked ({error.strerror})") from error
        raise RunLocked(f"{folder} is in use by {holder}") from None
    _HELD.add(file)
    return file


def sign(held: IO[str]) -> None:
    """Say in the lock who holds it."""
    with storage(Path(held.name)):
        held.truncate(0)
        held.write(f"process {os.getpid()} on {os.uname().nodename}\n")
        held.flush()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with lock(folder) as held:
        sign(held)
        yield


def _let_go() -> None:
    """In a forked process, which would hold the locks of the one that may die before it."""
    for file in list(_HELD):
        with suppress(OSError, ValueError):  # ValueError: it is closed
            os.close(file.fileno())


os.register_at_fork(after_in_child=_let_go)
