"""Downloads of the data sets in the catalogue: verified, unpacked; complete or not at all.

Nothing from outside is trusted: an archive is unpacked only after its checksum was right, inside a
hidden folder, which is then moved to its place in one step.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from dcfl.data.catalogue import PUBLIC, Archive
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
        _unpack(partial, place)
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


def _unpack(file: Path, target: Path) -> None:
    """Python's own care suffices: only what has the official checksum comes here."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as zipped:
            zipped.extractall(target)
        return
    with tarfile.open(file) as tar:
        # Not in the first releases of Python 3.11.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(target)
