"""Is a site's machine fit for a run: the versions installed, room on its disks, a free port?"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dcfl.flower.deploy.kit_folder import SITE_FILE
from dcfl.flower.deploy.ports import OTHER_PORT, in_use
from dcfl.flower.deploy.site_findings import Finding, fine, wrong
from dcfl.system.printable import printable

VERSIONS, DISK, PORT = "versions", "disk", "port"
LEAST_FREE = 2**30  # bytes: some models with what clients keep, and logs
_COMPARED = ("dcfl", "torch", "flwr")
# In a kit: the versions with which its server's operator made it.
_VERSION_FILES = ("requirements.txt", "constraints.txt")
_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==([^\s;#]+)", re.MULTILINE)


def check_versions(folder: Path | None = None) -> Finding:
    """`folder`: with the files that name the server's versions."""
    here = {name: _installed(name) for name in _COMPARED}
    if missing := [name for name, found in here.items() if not found]:
        remedy = "install dcfl with Flower: pip install 'dcfl[flower]'"
        return wrong(VERSIONS, f"{', '.join(missing)}: not installed", remedy)
    server = _server_versions(folder) if folder else {}
    different = [
        f"{name} {found} here, {server[name]} at the server"
        for name, found in here.items()
        # Without local parts such as +cpu: the build is the site's choice.
        if name in server and server[name].partition("+")[0] != found.partition("+")[0]
    ]
    if different:
        return wrong(VERSIONS, "; ".join(different), "install the server's versions")
    told = ", ".join(f"{name} {found}" for name, found in here.items())
    suffix = " as at the server" if server else ""
    return fine(VERSIONS, f"{told}{suffix}; Python {platform.python_version()}")


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _server_versions(folder: Path) -> dict[str, str]:
    paths = [folder / name for name in _VERSION_FILES]
    texts = [path.read_text("utf-8", "replace") for path in paths if path.is_file()]
    return {name.lower(): found for text in texts for name, found in _PINNED.findall(text)}


def check_port(port: int, runs: bool) -> Finding:
    """`port`: the SuperNode's own. `runs`: that SuperNode has it now."""
    if runs:
        return fine(PORT, f"{port}, of the SuperNode that runs here")
    if in_use(port):
        return wrong(PORT, f"{port} is in use by another program", f"{OTHER_PORT} {SITE_FILE}")
    return fine(PORT, f"{port} is free")


def check_disk(folders: Mapping[str, Path]) -> list[Finding]:
    """`folders`: what is kept in each, which need not exist yet."""
    return [_check_folder(what, path) for what, path in folders.items()]


def _check_folder(what: str, path: Path) -> Finding:
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        remedy = f"let this user write there, or choose another folder for {what}"
        return wrong(DISK, f"{printable(path)} cannot be written", remedy)
    free = shutil.disk_usage(there).free
    told = f"{free / 2**30:,.1f} GiB free for {what} in {printable(path)}"
    if free < LEAST_FREE:
        return wrong(DISK, told, f"make room: at least {LEAST_FREE / 2**30:g} GiB")
    return fine(DISK, told)
