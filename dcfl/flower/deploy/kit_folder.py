"""A kit's folder as its scripts read it: what one site, or the server, needs to take part, and how
its daemons are doing. Asked every minute in a container: it imports little.

site.toml or server.toml says everything; paths in it are absolute or begin at the folder. What a
daemon keeps is in `state`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dcfl.errors import ConfigError, NetworkError, require
from dcfl.flower.deploy.checks import HARMLESS, check_authority, check_link, problems
from dcfl.flower.deploy.daemons import LOOPBACK, Daemon, read_record
from dcfl.flower.deploy.superlink import (
    Connection,
    RunStatus,
    host_and_port,
    newest_runs,
    plain,
    registered_nodes,
)
from dcfl.flower.roster import fingerprint_in
from dcfl.system.storage import read_data

CODE_LINE = "# dcfl's own code, SHA-256:"  # in constraints.txt: two builds may have one version
SITE_FILE, SERVER_FILE = "site.toml", "server.toml"
NGINX, NO_PROXY = "nginx", "none"
LAST_LINES = 3  # of a log, shown
_OWN_QUESTION = r"ControlServicer\.ListNodes|/v1/control/list-nodes"  # who is online
_NODE_PATHS = ("memories", "data-path", "audit")  # keys of [node] that are paths


@dataclass(frozen=True)
class SiteKit:
    folder: Path
    name: str  # that of its key
    address: str  # the SuperLink's, as the site reaches it
    authority: Path
    key: Path
    port: int  # the SuperNode's own, on loopback
    node_config: Mapping[str, object]  # with absolute paths

    @property
    def state(self) -> Path:
        return self.folder / "state"


@dataclass(frozen=True)
class ServerKit:
    folder: Path
    address: str  # as sites reach it, by the proxy
    port: int  # the SuperLink's own, on loopback
    proxy: str  # NGINX or NO_PROXY
    sites: tuple[str, ...]  # their names

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def authority(self) -> Path:
        return self.keys / "ca.crt"

    @property
    def public_keys(self) -> tuple[Path, ...]:
        return tuple(self.keys / f"{site}.pub" for site in self.sites)

    @property
    def public_port(self) -> int:
        """The port of the proxy."""
        return host_and_port(self.address)[1]

    @property
    def link(self) -> Connection:
        return Connection(f"{LOOPBACK}:{self.port}", self.state / "flwr", self.authority)


def open_kit(folder: Path) -> SiteKit | ServerKit:
    folder = folder.resolve()
    if (folder / SITE_FILE).is_file():
        return open_site(folder)
    if (folder / SERVER_FILE).is_file():
        return open_server(folder)
    hint = f"give a folder of `dcfl flower kit`, with {SITE_FILE} or {SERVER_FILE}"
    raise ConfigError(f"{folder}: not a kit; {hint}")


def open_site(folder: Path) -> SiteKit:
    folder = folder.resolve()
    require(
        (folder / SITE_FILE).is_file(),
        f"{folder}: not a site's folder, there is no {SITE_FILE}; `dcfl flower kit` writes one, "
        f"and `dcfl flower up` makes the checks of a site itself",
    )
    tables = _Tables(folder / SITE_FILE, {"superlink", "node"})
    superlink = tables.strings("superlink", "address", "root-certificate", "key", also=("port",))
    key = folder / superlink["key"]
    return SiteKit(
        folder,
        key.name,
        superlink["address"],
        folder / superlink["root-certificate"],
        key,
        tables.port("superlink"),
        _with_absolute_paths(folder, tables.content["node"]),
    )


def open_server(folder: Path) -> ServerKit:
    folder = folder.resolve()
    tables = _Tables(folder / SERVER_FILE, {"superlink", "sites"})
    superlink = tables.strings("superlink", "address", "proxy", also=("port",))
    proxy = superlink["proxy"]
    known = proxy in (NGINX, NO_PROXY)
    require(known, f"{tables.path}: proxy = {proxy!r}: give {NGINX} or {NO_PROXY}")
    names = tables.content["sites"].get("names")
    fits = isinstance(names, list) and all(isinstance(name, str) for name in names)
    require(bool(names) and fits, f"{tables.path}: [sites] names: give a list of names")
    port = tables.port("superlink")
    return ServerKit(folder, superlink["address"], port, proxy, tuple(names or ()))


class _Tables:
    """A file of tables, whose mistakes are named with the file, the table and the key."""

    def __init__(self, path: Path, tables: set[str]) -> None:
        self.path = path
        try:
            self.content: dict[str, Any] = tomllib.loads(read_data(path).decode())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:  # also text that is not UTF-8
            raise ConfigError(f"{path}: not TOML ({error})") from None
        for name in self.content.keys() ^ tables:
            known = "unknown" if name in self.content else "missing"
            raise ConfigError(f"{path}: [{name}] is {known}")
        for name, table in self.content.items():
            require(isinstance(table, dict), f"{path}: {name} is not a table")

    def strings(self, table: str, *keys: str, also: tuple[str, ...]) -> dict[str, str]:
        found = self.content[table]
        for key in found:
            known = ", ".join((*keys, *also))
            require(key in (*keys, *also), f"{self.path}: [{table}] {key} is unknown; {known} are")
        for key in keys:
            fits = isinstance(found.get(key), str) and found[key]
            require(bool(fits), f"{self.path}: [{table}] {key}: give a text")
        return {key: found[key] for key in keys}

    def port(self, table: str) -> int:
        port = self.content[table].get("port")
        fits = isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536
        require(fits, f"{self.path}: [{table}] port: give a number from 1 to 65535")
        return int(port)


def _with_absolute_paths(folder: Path, node: Mapping[str, object]) -> dict[str, object]:
    absolute = dict(node)
    for key in _NODE_PATHS:
        if isinstance(value := node.get(key), str) and value:
            absolute[key] = str(folder / os.path.expanduser(value))
    if isinstance(group := node.get("group"), str) and group.lower().endswith(".csv"):
        absolute["group"] = str(folder / os.path.expanduser(group))
    data = node.get("data")
    if isinstance(data, str) and ":" in data:
        kind, _, where = data.partition(":")
        absolute["data"] = f"{kind}:{folder / os.path.expanduser(where)}"
    return absolute


@dataclass(frozen=True)
class Way:
    """A way to the SuperLink or to its proxy."""

    address: str
    obstacle: str  # why it cannot be reached; empty: it can


@dataclass(frozen=True)
class KitStatus:
    daemons: tuple[Daemon, ...]
    ways: tuple[Way, ...]
    sites: Mapping[str, str] = field(default_factory=dict)  # of a server: how each is seen there
    log: Path | None = None
    last_lines: tuple[str, ...] = ()
    runs: tuple[RunStatus, ...] = ()  # of a server, the newest first

    @property
    def well(self) -> bool:
        """A server may be well without its sites."""
        alive = [daemon.alive for daemon in self.daemons]
        return bool(alive) and all(alive) and not any(way.obstacle for way in self.ways)


def kit_status(kit: SiteKit | ServerKit) -> KitStatus:
    daemons = read_record(kit.state).daemons
    ways = tuple(Way(address, unreachable(address, kit.authority)) for address in _addresses(kit))
    answers = bool(daemons) and not ways[0].obstacle
    sites = _sites(kit) if isinstance(kit, ServerKit) and answers else {}
    log = kit.state / "logs" / f"{daemons[0].name}.log" if daemons else None
    runs: tuple[RunStatus, ...] = ()
    if isinstance(kit, ServerKit) and answers:
        with suppress(NetworkError):
            runs = newest_runs(kit.link)
    found = KitStatus(daemons, ways, sites, runs=runs)
    if log is None or not log.is_file():
        return found
    return replace(found, log=log, last_lines=last_lines(plain(log.read_bytes())))


def last_lines(log: str) -> tuple[str, ...]:
    """Without what this look and a site's check leave there."""
    own = re.compile(f"{HARMLESS}|{_OWN_QUESTION}")
    told = [line for line in log.splitlines() if line.strip() and not own.search(line)]
    return tuple(told[-LAST_LINES:])


def _addresses(kit: SiteKit | ServerKit) -> list[str]:
    """A server is asked on its own side: its name may lead somewhere else from there."""
    if isinstance(kit, SiteKit):
        return [kit.address]
    proxy = [f"{LOOPBACK}:{kit.public_port}"] if kit.proxy == NGINX else []
    return [kit.link.address, *proxy]


def _sites(kit: ServerKit) -> dict[str, str]:
    nodes = registered_nodes(kit.link)
    if nodes is None:
        return {}
    states = {node.key: "online" if node.online else "not online" for node in nodes}
    keys = zip(kit.sites, kit.public_keys, strict=True)
    return {site: states.get(fingerprint_in(key), "not registered") for site, key in keys}


def unreachable(address: str, authority: Path) -> str:
    """Why a SuperLink or its proxy does not answer with a certificate of our authority; empty if it
    does."""
    known = check_authority(authority)
    found = [known, *(check_link(address, authority) if known.ok else [])]
    return next((finding.text for finding in problems(found)), "")
