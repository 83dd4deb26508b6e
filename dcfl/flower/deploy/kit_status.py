"""How a kit's daemons are doing, from where they run. Asked every minute in a container: it imports
little."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dcfl.flower.deploy.checks import HARMLESS, check_authority, check_link, problems
from dcfl.flower.deploy.daemons import LOOPBACK, Daemon
from dcfl.flower.deploy.deployment_record import read_record
from dcfl.flower.deploy.kit_folder import NGINX, ServerKit, SiteKit
from dcfl.flower.deploy.superlink import plain, registered_nodes
from dcfl.flower.roster import fingerprint_in

LAST_LINES = 3  # of a log, shown
_OWN_QUESTION = r"ControlServicer\.ListNodes|/v1/control/list-nodes"  # who is online


@dataclass(frozen=True)
class Way:
    """To the SuperLink or to its proxy."""

    address: str
    obstacle: str  # why it cannot be reached; empty: it can


@dataclass(frozen=True)
class KitStatus:
    daemons: tuple[Daemon, ...]
    ways: tuple[Way, ...]
    sites: Mapping[str, str] = field(default_factory=dict)  # of a server: how each is seen there
    log: Path | None = None
    last_lines: tuple[str, ...] = ()

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
    if log is None or not log.is_file():
        return KitStatus(daemons, ways, sites)
    return KitStatus(daemons, ways, sites, log, last_lines(plain(log.read_bytes())))


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
