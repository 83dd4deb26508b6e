"""Archives over HTTP: resumed where a connection broke, kept only with the right checksum."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from dcfl.data.unpacking import CHUNK
from dcfl.errors import DatasetCorrupt, NetworkError
from dcfl.system.storage import storage

Report = Callable[[int, int | None], None]
TIMEOUT = 30.0  # seconds without a byte
PAUSE = 1.0  # seconds before a broken download is resumed
TRIES = 10


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str
    folder: str  # the one folder in the archive, and its name on disk
    required: tuple[str, ...]  # in that folder, for the data set to count as complete
    max_download: int = 300_000_000
    max_files: int = 50
    max_bytes: int = 300_000_000

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


def downloaded(archive: Archive, folder: Path, report: Report) -> Path:
    """The complete archive with the right checksum; continues an earlier download."""
    partial = partial_file(archive, folder)
    with storage(partial):
        complete = partial.is_file() and _md5(partial) == archive.md5
        if not complete:
            _download(archive, partial, report)
            md5 = _md5(partial)
            if md5 != archive.md5:
                partial.unlink()
                raise DatasetCorrupt(
                    f"{archive.url}: what came is not the official archive (MD5 {md5} instead of "
                    f"{archive.md5}); it was deleted: try again later"
                )
    return partial


def partial_file(archive: Archive, folder: Path) -> Path:
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
    start = _size(partial)
    response = _connect(archive.url, start)
    if start and response.status == 206 and _first_byte(response) != start:
        response.close()
        response = _connect(archive.url, 0)
    if response.status != 206:
        start = 0
    length = _content_length(response)
    total = None if length is None else start + length
    with response, partial.open("ab" if start else "wb") as stream:
        done = start
        report(done, total)
        while done <= archive.max_download and (data := _read_chunk(response, archive.url)):
            stream.write(data)
            done += len(data)
            report(done, total)
    if done > archive.max_download:
        partial.unlink()
        raise DatasetCorrupt(f"{archive.url}: far larger than the official archive; deleted")
    if total is not None and done < total:
        raise NetworkError(f"{archive.url}: the connection broke at {done:,} of {total:,} bytes")


@contextmanager
def _as_network_errors(url: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        raise NetworkError(f"{url}: the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        text = " ".join(str(reason).split()) or type(error).__name__
        raise NetworkError(f"{url}: cannot be reached ({text[:200]})") from error


def _connect(url: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": f"dcfl/{version('dcfl')}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _as_network_errors(url):
        try:
            response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        except HTTPError as error:
            if start and error.code == 416:  # the partial file is longer than the archive
                return _connect(url, 0)
            raise
        return response


def _read_chunk(response: HTTPResponse, url: str) -> bytes:
    with _as_network_errors(url):
        return response.read1(CHUNK)


def _first_byte(response: HTTPResponse) -> int | None:
    stated = re.match(r"bytes (\d{1,15})-", response.headers.get("Content-Range", ""))
    return int(stated[1]) if stated else None


def _content_length(response: HTTPResponse) -> int | None:
    stated = response.headers.get("Content-Length", "")
    return int(stated) if re.fullmatch(r"\d{1,15}", stated) else None
