"""Downloads of the data sets in the catalogue: verified, unpacked; complete or not at all.

Nothing from outside is trusted: an archive is unpacked only after its checksum was right, inside a
hidden folder, which is then moved to its place in one step.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
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


def get_dataset(name: str, folder: Path, report: Report) -> str:
    """Put the data set into `folder`; returns where it came from.

    `report(done, total)` is called with bytes as they arrive; `total` may be unknown.
    """
    sources = {known: public.archive for known, public in PUBLIC.items() if public.archive}
    if name not in sources:
        raise ConfigError(f"no source for {name!r}; known: {', '.join(sources)}")
    archive = sources[name]
    with suppress(DatasetMissing, DatasetCorrupt):
        (PUBLIC[name].verify or PUBLIC[name].files)(folder)
        return "already there"  # and undamaged
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place := folder / archive.folder):
        raise DatasetCorrupt(
            f"{place} is in the way and is not a whole data set: "
            f"move it away, then run `dcfl data get {name}` again"
        )
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
    return "official archive"


def _from_archive(archive: Archive, folder: Path, report: Report) -> None:
    with (
        storage(folder),
        # On the same disk, and gone at the end whatever happens.
        TemporaryDirectory(prefix=".dcfl-", dir=folder, ignore_cleanup_errors=True) as place,
    ):
        file, unpacked = Path(place, "archive"), Path(place, archive.folder)
        if (md5 := _download(archive, file, report)) != archive.md5:
            raise DatasetCorrupt(
                f"{archive.url}: what came is not the official archive (MD5 {md5} instead of "
                f"{archive.md5}); it was deleted: try again later"
            )
        _unpack(file, Path(place))
        missing = [name for name in archive.required if not (unpacked / name).exists()]
        if missing:
            raise DatasetCorrupt(f"{archive.url}: there is no {missing[0]} in the archive")
        os.replace(unpacked, folder / archive.folder)


def _download(archive: Archive, file: Path, report: Report) -> str:
    """Write the file; returns its MD5."""
    headers = {"User-Agent": f"dcfl/{version('dcfl')}", "Accept-Encoding": "identity"}
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with _network_errors(archive.url):
        response: HTTPResponse = urlopen(Request(archive.url, headers=headers), timeout=TIMEOUT)
    with response, file.open("wb") as stream:
        total = response.length
        report(done, total)
        while done <= archive.max_download:
            with _network_errors(archive.url):
                data = response.read1(CHUNK)
            if not data:
                break
            stream.write(data)
            digest.update(data)
            done += len(data)
            report(done, total)
    if done > archive.max_download:
        raise DatasetCorrupt(f"{archive.url}: far larger than the official archive; deleted")
    if total is not None and done < total:
        raise NetworkError(f"{archive.url}: the connection broke at {done:,} of {total:,} bytes")
    return digest.hexdigest()


@contextmanager
def _network_errors(url: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        raise NetworkError(f"{url}: the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        brief = " ".join(str(reason).split())[:200] or type(reason).__name__
        raise NetworkError(f"{url}: cannot be reached ({brief})") from error


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
