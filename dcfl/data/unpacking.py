"""Untrusted archives: regular files below one folder, within limits, and nothing else."""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dcfl.errors import DatasetCorrupt, DCFLError
from dcfl.system.storage import storage

CHUNK = 1 << 18


def unpack(file: Path, target: Path, top: str, max_files: int, max_bytes: int) -> None:
    """Regular files below the folder `top`, and nothing else, into the folder `target`."""
    budget = _Budget(file, target, top, max_files, max_bytes)
    with _readable(file), file.open("rb") as stream:
        if stream.read(2) == b"PK":
            _unpack_zip(stream, budget)
        else:
            stream.seek(0)
            _unpack_tar(stream, budget)
    if not (target / top).is_dir():
        raise budget.refuse("the archive is empty")


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except DCFLError:
        raise
    except Exception as error:  # a broken or hostile archive may raise anything
        raise DatasetCorrupt(f"{file.name}: not a whole archive ({brief(error)})") from error


def brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


class _Budget:
    """What an archive may still write, and where."""

    def __init__(self, file: Path, target: Path, top: str, files: int, size: int) -> None:
        self.file, self.target, self.top = file, target, top
        self.files, self.bytes = files, size

    def refuse(self, why: str) -> DatasetCorrupt:
        return DatasetCorrupt(f"{self.file.name}: refused, {why}; nothing was unpacked")

    def place(self, name: str) -> Path:
        """Where a member goes; the name may not lead out of the one allowed folder."""
        self.files -= 1
        if self.files < 0:
            raise self.refuse("too many files in the archive")
        parts = name.rstrip("/").split("/")
        odd = any(part in {"", ".", ".."} or len(part) > 255 for part in parts)
        if odd or parts[0] != self.top or not re.fullmatch(r"[\w./ +-]{1,1000}", name, re.ASCII):
            raise self.refuse(f"it contains {name[:80]!r}")
        return self.target.joinpath(*parts)

    def spend(self, size: int) -> None:
        self.bytes -= size
        if self.bytes < 0:
            raise self.refuse("the archive is larger than it should be")

    def folder(self, name: str) -> None:
        self._make(self.place(name), name)

    def _make(self, folder: Path, name: str) -> None:
        with storage(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise self.refuse(f"{name[:80]!r} is below what is a file") from error

    def copy(self, name: str, source: IO[bytes]) -> None:
        place = self.place(name)
        if os.path.lexists(place):
            raise self.refuse(f"it contains {name[:80]!r} twice")
        self._make(place.parent, name)
        with storage(place), place.open("xb") as stream:
            for data in self._pieces(source):
                stream.write(data)

    def _pieces(self, source: IO[bytes]) -> Iterator[bytes]:
        """A failed read is the archive's fault; a failed write is the disk's."""
        with _readable(self.file):
            while data := source.read(CHUNK):
                self.spend(len(data))
                yield data


class _Capped(io.RawIOBase):
    """A stream that fails when it grows too long, before it fills the memory."""

    def __init__(self, stream: gzip.GzipFile, budget: _Budget) -> None:
        super().__init__()
        # Headers, and padding to whole blocks, come on top of the content.
        self.stream, self.budget = stream, budget
        self.left = budget.bytes + 2_048 * budget.files + 100_000

    def read(self, size: int = -1, /) -> bytes:
        data = self.stream.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise self.budget.refuse("the archive is larger than it should be")
        return data


def _unpack_tar(stream: IO[bytes], budget: _Budget) -> None:
    with (
        gzip.open(stream, "rb") as content,
        tarfile.open(fileobj=_Capped(content, budget), mode="r|") as tar,
    ):
        for member in tar:
            if member.isdir():
                budget.folder(member.name)
                continue
            source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if source is None:
                raise budget.refuse(f"{member.name[:80]!r} is not a regular file")
            budget.copy(member.name, source)


def _unpack_zip(stream: IO[bytes], budget: _Budget) -> None:
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > budget.bytes:
            raise budget.refuse("the archive is larger than it should be")
        for member in members:
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR} or member.flag_bits & 1:
                raise budget.refuse(f"{member.filename[:80]!r} is not a regular file")
            if member.is_dir():
                budget.folder(member.filename)
                continue
            if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise budget.refuse(f"{member.filename[:80]!r} is packed in an unusual way")
            with archive.open(member) as source:  # reads file_size bytes at most, checks the CRC
                budget.copy(member.filename, source)
