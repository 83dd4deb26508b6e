"""Writes kits: all that one site, or the server, needs to take part, in a folder ready to send."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path

from cryptography.hazmat.primitives.serialization import PrivateFormat
from jinja2 import Environment, PackageLoader, StrictUndefined
from packaging.utils import canonicalize_name

from dcfl.errors import ConfigError, require
from dcfl.flower.deploy.checks import read_key
from dcfl.flower.deploy.keys import (
    LOCAL_HOSTS,
    check_sites,
    make_keys,
    valid_until,
    write_private,
)
from dcfl.flower.deploy.kit_folder import CODE_LINE
from dcfl.flower.deploy.superlink import host_and_port
from dcfl.flower.roster import fingerprint_in, fingerprint_of
from dcfl.system.build import code_sha256, wheel_sha256
from dcfl.system.storage import PRIVATE_FILE, private_folder, storage

_HEAD = "# The versions with which the operator of the server made this kit: used where needed.\n"


@cache
def constraints() -> str:
    """The text for `pip install --constraint`, without local versions (+cpu): the build is the
    site's choice."""
    found = [one for one in distributions() if one.name]  # a removal may leave nameless folders
    versions = {canonicalize_name(one.name): one.version for one in reversed(found)}
    lines = [f"{name}=={versions[name].partition('+')[0]}\n" for name in sorted(versions)]
    return _HEAD + "".join(line for line in lines if not line.startswith("dcfl=="))


SERVER = "server"  # keys.py keeps this name from being a site's
SUPERLINK_PORT = 28443  # on the server's loopback
DATA = "folder:/data/scans"
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
_SCRIPTS = {"install", "start", "stop", "status", "check", "run", "add"}
_SCRIPT_MODE, _FILE_MODE = 0o755, 0o644
_TEMPLATES = Environment(
    loader=PackageLoader("dcfl.flower.deploy", "kits"),
    undefined=StrictUndefined,
    autoescape=False,  # no HTML; every value is checked before it comes here
    keep_trailing_newline=True,
    trim_blocks=True,
)


@dataclass(frozen=True)
class Kits:
    """What kits that are written together have in common."""

    superlink: str  # host:port, as sites reach it
    sites: tuple[str, ...]  # all of them, or the new ones
    keys: Path  # made if it is not there
    data: str = DATA  # of a site
    wheel: Path | None = None  # of dcfl, if it does not come from a package index
    days: int = 365  # how long new certificates are valid

    def __post_init__(self) -> None:
        host_and_port(self.superlink)
        require(bool(self.sites), "which sites are there? Say it with --sites A,B")
        check_sites(self.sites)
        _data_values(self.data)
        if self.wheel is not None:
            fits = self.wheel.is_file() and _WHEEL.fullmatch(self.wheel.name)
            require(
                bool(fits), f"{self.wheel}: not a wheel (a .whl file, by the name it was built)"
            )

    def make_missing_keys(self, added: bool = False) -> None:
        """Make keys and certificates, unless a site with a key is forgotten. `added`: to those
        that are there."""
        known = sorted(path.stem for path in self.keys.glob("*.pub"))
        if added:
            require(bool(known), f"{self.keys}: has no site's key; without --add it is made anew")
            taken = [site for site in self.sites if site in known]
            require(not taken, f"{', '.join(taken)}: is a site already, by {self.keys}")
        forgotten = [] if added else [site for site in known if site not in self.sites]
        require(
            not forgotten,
            f"{self.keys} has a key of {', '.join(forgotten)} too: name all sites with --sites "
            f"{','.join([*self.sites, *forgotten])}, or a new one with --add",
        )
        host, _ = host_and_port(self.superlink)
        hosts = list(dict.fromkeys([host, *LOCAL_HOSTS]))  # the proxy calls the SuperLink localhost
        make_keys(self.keys, self.sites, hosts, self.days, none_missing=True)
        for site in self.sites:
            private, public = self.keys / site, self.keys / f"{site}.pub"
            same = fingerprint_in(public) == fingerprint_of(read_key(private).public_key())
            require(same, f"{public}: is not of the key {private}; bring the right file back")

    def check_room(self, names: Iterable[str], out: Path) -> None:
        """Kits are never written over: better said before the first is written."""
        for name in names:
            free = not (out / name).exists()
            require(free, f"{out / name}: is there already; move it away first")

    def write(self, name: str, out: Path) -> Path:
        """Write the kit of a site, or of the server, into the new folder `out`/`name`: as a whole
        or not at all."""
        folder = out / name
        self.check_room([name], out)
        texts = self._texts(name)
        partial = out / f".{name}.partial"
        with storage(folder):
            shutil.rmtree(partial, ignore_errors=True)
            private_folder(partial)
            try:
                for file, text in texts.items():
                    (partial / file).write_text(text, encoding="utf-8")
                    (partial / file).chmod(_SCRIPT_MODE if file in _SCRIPTS else _FILE_MODE)
                self._copy_keys(name, partial / "keys")
                if name == SERVER:
                    private_folder(partial / "configs")
                if self.wheel is not None:
                    shutil.copy(self.wheel, partial / self.wheel.name)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return folder

    def _texts(self, name: str) -> dict[str, str]:
        values = {**self._values(name), **_data_values(self.data)}
        code = wheel_sha256(self.wheel) if self.wheel else code_sha256()
        texts = {"constraints.txt": f"{CODE_LINE} {code}\n{constraints()}"}
        for path in _TEMPLATES.list_templates():
            kind, file = path.split("/")
            if kind in ("both", SERVER if name == SERVER else "site"):
                written = _RENAMED.get(file, file).format(name=name)
                texts[written] = _TEMPLATES.get_template(path).render(values)
        return texts

    def _values(self, name: str) -> Mapping[str, object]:
        _, port = host_and_port(self.superlink)
        server = name == SERVER
        return {
            "name": name,
            "title": "server of a federation" if server else f"site {name} of a federation",
            "server": server,
            "sites": self.sites,
            "superlink": self.superlink,
            "superlink_port": SUPERLINK_PORT if port != SUPERLINK_PORT else SUPERLINK_PORT + 1,
            "port": port,
            "wheel": self.wheel.name if self.wheel else "",
            "requirement": _requirement(self.wheel),
            "valid_until": f"{valid_until(self.keys):%d %B %Y}",
        }

    def _copy_keys(self, name: str, folder: Path) -> None:
        private_folder(folder)
        if name == SERVER:
            files = ["ca.crt", "server.pem", "server.key", *(f"{site}.pub" for site in self.sites)]
        else:
            files = ["ca.crt", f"{name}.pub"]
            write_private(folder / name, read_key(self.keys / name), PrivateFormat.PKCS8)
        for file in files:
            shutil.copy(self.keys / file, folder / file)  # with its mode
        if name == SERVER:
            (folder / "server.key").chmod(PRIVATE_FILE)


# Names that would mean something to the package itself, or that hold the kit's name.
_RENAMED = {"dockerignore": ".dockerignore", "dcfl.service": "dcfl-{name}.service"}


def _data_values(data: str) -> dict[str, str]:
    kind, _, path = data.partition(":")
    plain = path.isprintable() and not set('"\\$') & set(path) and path == path.strip()
    whole = Path(path).is_absolute() and ".." not in Path(path).parts
    if kind not in ("folder", "sites", "npz") or not plain or not whole:
        raise ConfigError(
            f"--data {data}: give folder:PATH, sites:PATH or npz:FILE, with the absolute path at "
            f'the site, without .. or one of " \\ $ and what cannot be seen'
        )
    return {"data": data, "pictures": path}


def _requirement(wheel: Path | None) -> str:
    return f"./{wheel.name}[site]" if wheel else f"dcfl[site]=={version('dcfl')}"
