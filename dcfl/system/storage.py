"""Files: written whole or not at all, read up to a size, never written through a link."""

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
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Literal

from dcfl.errors import DCFLError, RunFolderError, StorageError

PARTIAL = ".partial"  # ends the name of a file that is being written
MOST_BYTES, MOST_OF_CONFIG = 64 * 2**20, 4 * 2**20  # of files that are read whole
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
            folder = next(above for above in path.absolute().parents if above.is_dir())
            reason = f"{reason}; {shutil.disk_usage(folder).free / 1e6:,.1f} MB free"
        raise StorageError(f"{path}: cannot be written ({reason})") from error


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
                sync(partial)
            os.replace(partial, path)
            if durable:
                sync_folder(path.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def _create(path: Path, mode: int) -> int:
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


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """So that the file's new name is on the disk too. Windows cannot open folders."""
    if os.name != "nt":
        sync(path)


def write_whole(path: Path, text: str, durable: bool = False, private: bool = False) -> None:
    """In UTF-8; paths that are not valid UTF-8 keep their bytes."""
    with replacing(path, durable, private) as partial:
        partial.write_text(text, encoding="utf-8", errors="surrogateescape")


def write_once(path: Path, text: str) -> None:
    """Write a file that is readable by this user alone, unless there is one: of several processes
    the first has written it, whole."""
    if not path.exists():
        with NamedTemporaryFile("w", dir=path.parent, encoding="utf-8") as own:
            own.write(text)
            own.flush()
            os.fsync(own.fileno())
            with suppress(FileExistsError):
                os.link(own.name, path)


def open_data(path: Path, most: int) -> BufferedReader:
    """Open a file to read it. OSError for a pipe or a device, which could block for ever or never
    end, and for a file of more than `most` bytes."""

    def opener(name: str, flags: int) -> int:
        return _regular(os.open(name, flags | getattr(os, "O_NONBLOCK", 0)), name, most)

    return open(path, "rb", opener=opener)


def read_data(path: Path) -> bytes:
    """All of a small file in a folder that may be somebody else's. OSError as in `open_data`."""
    with open_data(path, MOST_OF_CONFIG) as file:
        return file.read()


def _regular(descriptor: int, name: str, most: float = math.inf) -> int:
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise OSError(errno.EFBIG, f"larger than {most / 1e6:,g} MB", name)
    raise OSError(errno.EINVAL, "not a file", name)


def open_to_append(path: Path, mode: Literal["a", "ab", "a+b"]) -> IO[Any]:
    """Open a file in a folder that may be somebody else's. OSError for a link, which could lead out
    of the folder, and for a pipe, which could block for ever."""

    def opener(name: str, flags: int) -> int:
        if os.path.islink(name):
            raise OSError(errno.ELOOP, "it is a link, which may lead anywhere", name)
        return _regular(os.open(name, flags | _NO_LINKS_NO_WAITING, 0o666), name)

    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=opener)


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """What is in a file that may be somebody else's, unless it is more than `most` bytes. Also in a
    pipe, which a person may name: in a run folder, ask first whether it is a file."""
    with path.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise RunFolderError(f"{path} is damaged (more than {most // 2**20} MB)")
    return content


def user_folder(variable: str, default: str) -> Path | None:
    """dcfl's folder in the one that the variable names, as the XDG specification says; None for a
    container's user without a home, because a folder for everybody could be anybody's."""
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):
        base = os.path.expanduser(default)
    return Path(base) / "dcfl" if os.path.isabs(base) else None


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


def _all_inside(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder, however deep; links are not followed."""
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # gone, or not ours to read
            continue
        yield from entries
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def require_no_way_out(folder: Path) -> None:
    """Refuse a folder with a link in it that leads out of it, unless to a file: what is below may
    be somebody else's work, and nothing outside is written. Files are replaced, links and all, or
    not opened to append. The folder itself, which a person has named, may be a link. Other
    processes must not change it meanwhile."""
    real = os.path.realpath(folder)
    for entry in _all_inside(folder):
        risky = entry.is_symlink() and not os.path.isfile(entry.path)
        if risky and not Path(os.path.realpath(entry.path)).is_relative_to(real):
            raise RunFolderError(f"{entry.path} is a link that leads out of {folder}: remove it")


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left behind. Only for the holder of the folder's lock."""
    for entry in _all_inside(folder):
        # The second is what safetensors calls a file that it is writing.
        if re.fullmatch(rf"\..*\{PARTIAL}|\.tmp\w{{6}}", entry.name, re.DOTALL):
            path = Path(entry.path)
            with storage(path):
                path.unlink(missing_ok=True)
