"""Downloads of the data sets in the catalogue: verified, unpacked; complete or not at all.

Nothing from outside is trusted: an archive is unpacked only after its checksum was right, inside a
hidden folder, which is then moved to its place in one step.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from dcfl.data.catalogue import PUBLIC, Archive
from dcfl.data.readers.pickles import Refused
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing, NetworkError
from dcfl.system.storage import storage

Report = Callable[[int, int | None], None]
CHUNK = 1 << 18  # bytes
TIMEOUT = 30.0  # seconds without a byte
PAUSE = 1.0  # seconds before a broken download is resumed
TRIES = 10


def get_dataset(name: str, folder: Path, report: Report) -> str:
    """Put the data set into `folder`; returns where it came from.

    `report(done, total)` is called with bytes as they arrive; `total` may be unknown.
    """
    sources = {known: public.archive for known, public in PUBLIC.items() if public.archive}
    if name not in sources:
        raise ConfigError(f"no source for {name!r}; known: {', '.join(sources)}")
    archive = sources[name]
    if _is_complete(name, folder):
        return "already there"
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _require_absent(folder / archive.folder, name)
    try:
        _from_archive(archive, folder, report)
    except NetworkError as unreachable:
        raise NetworkError(
            f"{name}: {unreachable}; without a network, fetch {archive.file} elsewhere "
            f"and unpack it in {folder}, as {archive.folder}/"
        ) from unreachable
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if it stayed empty
    with storage(folder):
        _partial_file(archive, folder).unlink(missing_ok=True)
    return "official archive"


def _is_complete(name: str, folder: Path) -> bool:
    """Whether it is complete and undamaged, not merely present."""
    public = PUBLIC[name]
    try:
        (public.verify or public.files)(folder)
    except (DatasetMissing, DatasetCorrupt):
        return False
    return True


def _require_absent(place: Path, name: str) -> None:
    if os.path.lexists(place):
        raise DatasetCorrupt(
            f"{place} is in the way and is not a whole data set: "
            f"move it away, then run `dcfl data get {name}` again"
        )


@contextmanager
def _temporary_folder_in(folder: Path) -> Iterator[Path]:
    """A hidden folder on the same disk, removed at the end whatever happens."""
    with (
        storage(folder),
        TemporaryDirectory(prefix=".dcfl-", dir=folder, ignore_cleanup_errors=True) as place,
    ):
        yield Path(place)


def _brief(error: object) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# --- downloading ----------------------------------------------------------------------------------


def _from_archive(archive: Archive, folder: Path, report: Report) -> None:
    partial = _partial_file(archive, folder)
    with storage(partial):
        if not partial.is_file() or _md5(partial) != archive.md5:
            _download(archive, partial, report)
            if (md5 := _md5(partial)) != archive.md5:
                partial.unlink()
                raise DatasetCorrupt(
                    f"{archive.url}: what came is not the official archive (MD5 {md5} instead of "
                    f"{archive.md5}); it was deleted: try again later"
                )
    with _temporary_folder_in(folder) as place:
        unpack(partial, place, archive.folder, archive.max_files, archive.max_bytes)
        unpacked = place / archive.folder
        missing = [name for name in archive.required if not (unpacked / name).exists()]
        if missing:
            raise DatasetCorrupt(f"{archive.url}: there is no {missing[0]} in the archive")
        os.replace(unpacked, folder / archive.folder)


def _partial_file(archive: Archive, folder: Path) -> Path:
    return folder / f".{archive.file}.partial"


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def _download(archive: Archive, partial: Path, report: Report) -> None:
    """Retries as long as each attempt brings bytes; gives up on a site that sends none."""
    for left in reversed(range(TRIES)):
        before = _size(partial)
        try:
            _transfer(archive, partial, report)
            return
        except NetworkError:
            if left == 0 or _size(partial) <= before:
                raise
        time.sleep(PAUSE)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _transfer(archive: Archive, partial: Path, report: Report) -> None:
    """One connection: appends to the partial file, or starts over if the server cannot resume."""
    response = _connect(archive.url, _size(partial))
    done = _size(partial) if response.status == 206 else 0
    total = None if response.length is None else done + response.length
    with response, partial.open("ab" if done else "wb") as stream:
        report(done, total)
        while done <= archive.max_download:
            with _network_errors(archive.url):
                data = response.read1(CHUNK)
            if not data:
                break
            stream.write(data)
            done += len(data)
            report(done, total)
    if done > archive.max_download:
        partial.unlink()
        raise DatasetCorrupt(f"{archive.url}: far larger than the official archive; deleted")
    if total is not None and done < total:
        raise NetworkError(f"{archive.url}: the connection broke at {done:,} of {total:,} bytes")


def _connect(url: str, start: int) -> HTTPResponse:
    """An answer from that byte on, or from the first if the server cannot give that."""
    headers = {"User-Agent": f"dcfl/{version('dcfl')}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _network_errors(url):
        try:
            response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        except HTTPError as error:
            if not start or error.code != 416:
                raise
        else:
            stated = response.headers.get("Content-Range", "")
            if not start or response.status != 206 or stated.startswith(f"bytes {start}-"):
                return response
            response.close()
    return _connect(url, 0)


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        raise NetworkError(f"{url}: the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NetworkError(f"{url}: cannot be reached ({_brief(reason)})") from error


# --- unpacking ------------------------------------------------------------------------------------


def unpack(file: Path, target: Path, top: str, max_files: int, max_bytes: int) -> None:
    """Regular files below the folder `top`, and nothing else, into the folder `target`."""
    budget = _Budget(top, max_files, max_bytes)
    try:
        with file.open("rb") as stream:
            zipped = stream.read(2) == b"PK"
            stream.seek(0)
            (_unpack_zip if zipped else _unpack_tar)(stream, target, budget)
        if not (target / top).is_dir():
            raise Refused("the archive is empty")
    except Refused as error:
        raise DatasetCorrupt(f"{file.name}: refused, {error}; nothing was unpacked") from error
    except Exception as error:  # a broken or hostile archive may raise anything
        # Files below files are the archive's fault; other errors of the system are the disk's.
        its_own = gzip.BadGzipFile | FileExistsError | NotADirectoryError
        if isinstance(error, OSError) and not isinstance(error, its_own):
            raise
        raise DatasetCorrupt(f"{file.name}: not a whole archive ({_brief(error)})") from error


class _Budget:
    """What an archive may still write."""

    def __init__(self, top: str, files: int, size: int) -> None:
        # One folder, and names that mean the same on every system.
        self.names = re.compile(rf"{re.escape(top)}(/(?!\.\.?(/|$))[\w. +-]{{1,255}})*/?", re.ASCII)
        self.files, self.bytes = files, size

    def spend(self, name: str, size: int, plain: bool) -> None:
        self.files -= 1
        self.bytes -= size
        if self.files < 0:
            raise Refused("too many files in the archive")
        if self.bytes < 0:
            raise Refused("the archive is larger than it should be")
        if not plain:
            raise Refused(f"{name[:80]!r} is not a regular file")
        if len(name) > 1000 or not self.names.fullmatch(name):
            raise Refused(f"it contains {name[:80]!r}")


class _CappedGzip(gzip.GzipFile):
    """Fails when it grows too long, before it fills the memory."""

    left = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.left -= len(data)
        if self.left < 0:
            raise Refused("the archive is larger than it should be")
        return data


def _unpack_tar(stream: IO[bytes], target: Path, budget: _Budget) -> None:
    with _CappedGzip(fileobj=stream) as content:
        # Headers, and padding to whole blocks, come on top of the files.
        content.left = budget.bytes + 2_048 * budget.files + 100_000
        with tarfile.open(fileobj=content, mode="r|") as tar:
            # Not in the first releases of Python 3.11; `budget` alone refuses all that it does.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            for member in tar:
                plain = member.isdir() or (member.isreg() and not member.issparse())
                budget.spend(member.name, member.size, plain)
                tar.extract(member, target, set_attrs=False)


def _unpack_zip(stream: IO[bytes], target: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            packed = member.compress_type in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
            plain = kind in {0, stat.S_IFREG, stat.S_IFDIR} and packed
            budget.spend(member.filename, member.file_size, plain)
            archive.extract(member, target)  # at most file_size bytes, whose CRC is checked
