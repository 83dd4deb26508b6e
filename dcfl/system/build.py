"""Which code this is: two builds of one version differ in its hash."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.system.storage import storage

PACKAGE = Path(__file__).parents[1]
SHOWN_DIGITS = 8


def build() -> str:
    """The version, and the beginning of the hash of the code that is installed."""
    plain, _, local = version("dcfl").partition("+")
    return f"{plain}+{local}{'.' if local else ''}{code_sha256()[:SHOWN_DIGITS]}"


def code_sha256(package: Path = PACKAGE) -> str:
    """Of all Python files of the package, by their names."""
    with storage(package):
        files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
        return _sha256({name: path.read_bytes() for name, path in files.items()})


def wheel_sha256(wheel: Path) -> str:
    """The same, of the package in a wheel."""
    try:
        with storage(wheel), zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            own = [name for name in names if name.startswith(f"{PACKAGE.name}/")]
            return _sha256({name.partition("/")[2]: archive.read(name) for name in own})
    except zipfile.BadZipFile:
        raise ConfigError(f"{wheel}: not a wheel, which is a .zip file inside") from None


def _sha256(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {hashlib.sha256(files[name]).hexdigest()}\n".encode())
    return digest.hexdigest()
