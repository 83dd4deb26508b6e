"""One writer per folder: a lock that the kernel holds and frees, so a kill leaves none behind."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from filelock import FileLock, SoftFileLock, lock_descriptor

from dcfl.errors import RunLocked, StorageError
from dcfl.system.storage import open_to_append, require_no_way_out, storage

LOCK = ".lock"
# filelock's own choice where Python has no locks of the kernel (WebAssembly). There is no second
# process to lock out there either.
_NO_KERNEL_LOCKS = FileLock is SoftFileLock

_HELD: WeakSet[IO[bytes]] = WeakSet()


def lock(folder: Path) -> IO[bytes]:
    """Held until it is closed or this process ends, however it ends; RunLocked if it is taken.
    Whoever holds it writes into the folder, which nothing may lead out of."""
    path = folder / LOCK
    require_no_way_out(folder)
    with storage(path):
        file = open_to_append(path, "a+b")
    try:
        taken = try_lock(file)
    except OSError as error:
        file.close()
        raise StorageError(f"{path}: cannot be locked ({error.strerror})") from error
    if not taken:
        holder = _holder(file)
        file.close()
        raise RunLocked(f"{folder} is in use by {holder}")
    return file


def try_lock(file: IO[Any]) -> bool:
    """Whether this process holds the lock on an open file now; OSError where locks do not work.

    On a descriptor and not on a path: nothing but `open_to_append` decides what is opened.
    """
    try:
        taken = lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if not (_NO_KERNEL_LOCKS and error.errno == errno.ENOSYS):
            raise
        taken = True
    if taken:
        _HELD.add(file)
    return taken


def sign(held: IO[bytes]) -> None:
    with storage(Path(held.name)):
        held.truncate(0)
        # Windows locks the first byte, and lets nobody else read it.
        held.write(f"\nprocess {os.getpid()} on {platform.node()}\n".encode())
        held.flush()


def _holder(file: IO[bytes]) -> str:
    for start in (0, 1):  # see `sign`
        with suppress(OSError):
            file.seek(start)
            return file.read(100).decode(errors="replace").strip() or "another process"
    return "another process"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    with lock(folder) as held:
        sign(held)
        yield


def _close_in_child() -> None:
    """A forked process shares the lock, and would hold it after its parent's death."""
    for file in list(_HELD):
        with suppress(OSError, ValueError):  # ValueError: the file is closed
            os.close(file.fileno())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
