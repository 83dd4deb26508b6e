"""How a kit's daemons are doing, from where they run. Asked every minute in a container: it imports
little."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dcfl.flower.deploy.daemons import Daemon
from dcfl.flower.deploy.deployment_record import read_record
from dcfl.flower.deploy.kit_folder import ServerKit, SiteKit
from dcfl.flower.deploy.link_checks import check_authority, check_link
from dcfl.flower.deploy.site_findings import problems
from dcfl.flower.deploy.superlink import plain

LAST_LINES = 3  # of a log, shown


@dataclass(frozen=True)
class KitStatus:
    daemons: tuple[Daemon, ...]
    address: str
    obstacle: str  # why the address cannot be reached; empty: it can
    log: Path | None
    last_lines: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        alive = [daemon.alive for daemon in self.daemons]
        return bool(alive) and all(alive) and not self.obstacle


def kit_status(kit: SiteKit | ServerKit) -> KitStatus:
    daemons = read_record(kit.state).daemons
    # A server is asked on its own side: its name may lead somewhere else from there.
    address = kit.address if isinstance(kit, SiteKit) else kit.link.address
    obstacle = unreachable(address, kit.authority)
    log = kit.state / "logs" / f"{daemons[0].name}.log" if daemons else None
    if log is None or not log.is_file():
        return KitStatus(daemons, address, obstacle, None)
    lines = [line for line in plain(log.read_bytes()).splitlines() if line.strip()]
    return KitStatus(daemons, address, obstacle, log, tuple(lines[-LAST_LINES:]))


def unreachable(address: str, authority: Path) -> str:
    """Why a SuperLink or its proxy does not answer with a certificate of our authority; empty if it
    does."""
    known = check_authority(authority)
    found = [known, *(check_link(address, authority) if known.ok else [])]
    return next((finding.text for finding in problems(found)), "")
