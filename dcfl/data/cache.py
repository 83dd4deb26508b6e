"""Decoded once: arrays in memory-mapped files, which all processes share through the page cache.

An entry is a folder with an .npy file per array and a manifest. It appears by one rename, whole;
damaged ones are built again. Pictures may be private, so folders are 0700.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dcfl.data.readers.arrays import Arrays
from dcfl.system.storage import PRIVATE_FILE, PRIVATE_FOLDER, private_folder, user_folder

FORMAT = 9  # of entries, and of what readers produce: raise it when either changes
PIXELS = (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.int32))
ARRAYS: dict[str, tuple[np.dtype[Any], ...]] = {
    "train_pixels": PIXELS,
    "train_labels": (np.dtype(np.int64),),
    "test_pixels": PIXELS,
    "test_labels": (np.dtype(np.int64),),
    "site_offsets": (np.dtype(np.int64),),
    "train_groups": (np.dtype(np.int64),),
    "test_groups": (np.dtype(np.int64),),
    "test_owners": (np.dtype(np.int64),),
    "mean": (np.dtype(np.float64), np.dtype(np.int64)),
    "std": (np.dtype(np.float64), np.dtype(np.int64)),
}
PARTIAL = ".partial-"
OWN_NAME = re.compile(r"[a-z0-9-]+-[0-9a-f]{16}-[0-9a-f]{32}|\.partial-.*")
ABANDONED = 3600.0  # seconds; writing takes a few of them


def cached(
    name: str,
    files: Sequence[Path],
    settings: Mapping[str, object],
    read: Callable[[], Arrays],
    folder: Path | None = None,
) -> Arrays:
    """What `read()` returns, or what the cache has if the files have not changed since."""
    root = cache_folder() if folder is None else folder
    if root is None:
        _warn("there is no home folder", "DCFL_CACHE can name a folder")
        return read()
    entry = _identify(root, name, files, settings)
    try:
        stored = _load(entry) if _is_ours_alone(root) else None
    except OSError as error:
        _warn(f"{root}: {error.strerror or error}", "DCFL_CACHE can name another folder")
        return read()
    if stored is not None:
        return stored
    arrays = read()
    try:
        _store(entry, arrays)
    except OSError as error:
        _warn(f"{root}: {error.strerror or error}", "DCFL_CACHE can name another folder")
        return arrays
    # A private copy would cost this process the memory that the others share.
    return _load(entry) or arrays


def _warn(reason: str, remedy: str) -> None:
    warnings.warn(
        f"the images cannot be cached ({reason}) and will be decoded at every start; {remedy}",
        stacklevel=3,
    )


def _is_ours_alone(root: Path) -> bool:
    """Whether it exists and nobody else may look into it. OSError if that cannot be arranged."""
    if not os.path.lexists(root):
        return False
    if not root.is_symlink() and root.is_dir() and root.stat().st_mode & ~PRIVATE_FOLDER & 0o777:
        others = [path.name for path in root.iterdir() if not OWN_NAME.fullmatch(path.name)]
        if others:
            raise PermissionError(
                errno.EPERM, f"others may look into it, and it holds {others[0]}", str(root)
            )
    private_folder(root)
    return True


def cache_folder() -> Path | None:
    """$DCFL_CACHE, else $XDG_CACHE_HOME/dcfl, else ~/.cache/dcfl."""
    if chosen := os.environ.get("DCFL_CACHE"):
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    return user_folder("XDG_CACHE_HOME", "~/.cache")


# --- identity -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheEntry:
    root: Path
    family: str  # entries of one source with the same settings: the newest replaces the others
    key: str

    @property
    def folder(self) -> Path:
        return self.root / f"{self.family}-{self.key[:32]}"


def _identify(
    root: Path, name: str, files: Sequence[Path], settings: Mapping[str, object]
) -> CacheEntry:
    paths = sorted(map(os.fspath, files))
    source = _source(paths)
    about = json.dumps([FORMAT, name, dict(settings)], sort_keys=True, default=str)
    digest = hashlib.sha256(about.encode())
    for path in paths:
        line = f"\0{path[len(source) :]}\0{_identity(path)}"
        digest.update(line.encode("utf-8", "surrogatepass"))
    family = hashlib.sha256(f"{about}\0{os.path.abspath(source)}".encode("utf-8", "surrogatepass"))
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "data"
    return CacheEntry(root, f"{slug}-{family.hexdigest()[:16]}", digest.hexdigest())


def _source(paths: Sequence[str]) -> str:
    """The folder that contains them all, or the only file."""
    try:
        return os.path.commonpath(paths)
    except ValueError:  # none at all, or on several drives
        return ""


def _identity(path: str) -> str:
    """Changes with every rewrite: one that keeps size and time (as unpacking does) still has a new
    inode or change time."""
    try:
        status = os.stat(path)
    except OSError:  # a dangling link is part of the identity too; the reader reports it
        return "-"
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


# --- reading --------------------------------------------------------------------------------------


def _load(entry: CacheEntry) -> Arrays | None:
    """None if there is no such entry, or if anything about it has changed since it was written."""
    try:
        manifest = json.loads((entry.folder / "manifest.json").read_text(encoding="utf-8"))
        body = manifest["body"]
        if manifest["checksum"] != _checksum(body) or body["key"] != entry.key:
            return None
        arrays = {name: _open(entry.folder, name) for name in ARRAYS}
        described = {name: _describe(entry.folder, name, array) for name, array in arrays.items()}
        if described != body["arrays"]:
            return None
        return Arrays(
            **arrays,
            class_names=tuple(body["class_names"]),
            site_names=tuple(body["site_names"]),
            broken=body["broken"],
            notes=tuple(body["notes"]),
        )
    except Exception:  # whatever is wrong with an entry, its source files are still there
        return None


def _open(folder: Path, name: str) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if ARRAYS[name] == PIXELS:
        # Copy-on-write: shared until someone writes, and torch takes it without a warning.
        return npy.open_memmap(path, mode="c")
    with path.open("rb") as stream:
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def _describe(folder: Path, name: str, array: NDArray[Any]) -> dict[str, object]:
    """What must be the same when the array is read again. The checksum covers all of it, at about
    4 GB a second: 0.05 s for CIFAR-10."""
    if array.dtype not in ARRAYS[name]:
        raise ValueError(f"{name}: {array.dtype}")
    return {
        "shape": list(array.shape),
        "bytes": (folder / f"{name}.npy").stat().st_size,
        "crc": zlib.crc32(array.reshape(-1).view(np.uint8).data),
    }


def _checksum(body: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# --- writing --------------------------------------------------------------------------------------


def _store(entry: CacheEntry, arrays: Arrays) -> None:
    private_folder(entry.root)
    partial = _unused(entry.root)
    try:
        partial.mkdir(mode=PRIVATE_FOLDER)
        _write(partial, entry.key, arrays)
        _publish(partial, entry)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _tidy(entry)


def _unused(root: Path) -> Path:
    return root / f"{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}"


def _write(folder: Path, key: str, arrays: Arrays) -> None:
    described = {}
    for name in ARRAYS:
        array = np.ascontiguousarray(getattr(arrays, name))
        with _private(folder / f"{name}.npy") as stream:
            npy.write_array(stream, array, allow_pickle=False)
            _to_disk(stream.fileno())
        described[name] = _describe(folder, name, array)
    body = {
        "key": key,
        "class_names": list(arrays.class_names),
        "site_names": list(arrays.site_names),
        "broken": arrays.broken,
        "notes": list(arrays.notes),
        "arrays": described,
    }
    manifest = {"body": body, "checksum": _checksum(body)}
    with _private(folder / "manifest.json") as stream:
        stream.write(json.dumps(manifest, indent=1).encode())
        stream.flush()
        _to_disk(stream.fileno())


def _private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb")


def _to_disk(descriptor: int) -> None:
    os.fsync(descriptor)  # a power cut after the rename must not leave holes inside


def _publish(partial: Path, entry: CacheEntry) -> None:
    for _ in range(3):
        try:
            os.rename(partial, entry.folder)
            return
        except OSError:
            if not os.path.lexists(entry.folder):
                raise
        if _load(entry) is not None:  # another process was faster
            return
        _discard(entry.folder)


def _discard(folder: Path) -> None:
    """The folder is renamed first, in one step, so that nobody reads half of it."""
    aside = _unused(folder.parent)
    try:
        os.rename(folder, aside)
    except FileNotFoundError:  # another process did
        return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()


def _tidy(entry: CacheEntry) -> None:
    """Removes what the new entry replaces, and what killed processes left. Open maps stay valid."""
    try:
        for other in entry.root.glob(f"{entry.family}-*"):
            if other != entry.folder:
                _discard(other)
        for other in entry.root.glob(f"{PARTIAL}*"):
            if time.time() - other.stat().st_mtime > ABANDONED:
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        pass  # another process is tidying too, or may not: nothing depends on it
