"""Decoded once: arrays in memory-mapped files, which all processes share through the page cache.

An entry is a safetensors file. It appears by one rename, whole; damaged ones are built again.
Pictures may be private, so the folder is 0700.
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
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from dcfl.data.readers.arrays import Arrays
from dcfl.system.storage import PRIVATE_FILE, PRIVATE_FOLDER, private_folder, sync, user_folder

FORMAT = 10  # of entries, and of what readers produce: raise it when either changes
PARTIAL = ".partial-"
OWN_NAME = re.compile(r"[a-z0-9-]+-[0-9a-f]{16}-[0-9a-f]{32}(\.safetensors)?|\.partial-.*")
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
    entry = _entry(root, name, files, settings)
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
    except (OSError, SafetensorError) as error:  # the second is what it makes of a full disk
        _warn(
            f"{root}: {getattr(error, 'strerror', None) or error}",
            "DCFL_CACHE can name another folder",
        )
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


def _entry(root: Path, name: str, files: Sequence[Path], settings: Mapping[str, object]) -> Path:
    """Its name begins with that of its family: of one source and settings, the newest stays."""
    paths = sorted(map(os.fspath, files))
    source = _source(paths)
    about = json.dumps([FORMAT, name, dict(settings)], sort_keys=True, default=str)
    key = hashlib.sha256(about.encode())
    for path in paths:
        line = f"\0{path[len(source) :]}\0{_identity(path)}"
        key.update(line.encode("utf-8", "surrogatepass"))
    family = hashlib.sha256(f"{about}\0{os.path.abspath(source)}".encode("utf-8", "surrogatepass"))
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "data"
    return root / f"{slug}-{family.hexdigest()[:16]}-{key.hexdigest()[:32]}.safetensors"


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


# --- reading and writing --------------------------------------------------------------------------


def _load(entry: Path) -> Arrays | None:
    """None if there is no such entry, or if anything about it has changed since it was written."""
    try:
        with safe_open(entry, "pt") as stored:
            metadata = stored.metadata()
        # Copy-on-write: shared until someone writes, and torch takes it without a warning.
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in load_file(entry).items()}
        if metadata["checksum"] != _checksum(arrays, metadata["rest"]):
            return None
        for name, value in json.loads(metadata["rest"]).items():
            arrays[name] = tuple(value) if isinstance(value, list) else value
        return Arrays(**arrays)
    except Exception:  # whatever is wrong with an entry, its source files are still there
        return None


def _checksum(arrays: Mapping[str, NDArray[Any]], rest: str) -> str:
    """Covers every byte, at about 4 GB a second: 0.05 s for CIFAR-10."""
    crc = zlib.crc32(rest.encode())
    for name in sorted(arrays):
        crc = zlib.crc32(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode(), crc)
        crc = zlib.crc32(arrays[name].reshape(-1).view(np.uint8).data, crc)
    return f"{crc}"


def _store(entry: Path, arrays: Arrays) -> None:
    private_folder(entry.parent)
    values = {field.name: getattr(arrays, field.name) for field in fields(Arrays)}
    numbers = {k: np.ascontiguousarray(v) for k, v in values.items() if isinstance(v, np.ndarray)}
    rest = json.dumps({name: value for name, value in values.items() if name not in numbers})
    partial = entry.with_name(f"{PARTIAL}{os.getpid()}-{secrets.token_hex(4)}")
    try:
        tensors = {name: torch.from_numpy(array) for name, array in numbers.items()}
        save_file(tensors, partial, {"rest": rest, "checksum": _checksum(numbers, rest)})
        partial.chmod(PRIVATE_FILE)
        sync(partial)  # a power cut after the rename must not leave holes inside
        if entry.is_dir():
            _remove(entry)
        os.replace(partial, entry)
    finally:
        partial.unlink(missing_ok=True)
    _tidy(entry)


def _remove(path: Path) -> None:
    """Entries of earlier versions are folders."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _tidy(entry: Path) -> None:
    """Removes what the new entry replaces, and what killed processes left. Open maps stay valid."""
    family = entry.name.rpartition("-")[0]
    try:
        for other in [*entry.parent.glob(f"{family}-*"), *entry.parent.glob(f"{PARTIAL}*")]:
            young = time.time() - other.stat().st_mtime < ABANDONED
            if other != entry and not (young and other.name.startswith(PARTIAL)):
                _remove(other)
    except OSError:
        pass  # another process is tidying too, or may not: nothing depends on it
