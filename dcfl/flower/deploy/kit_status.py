"""How a kit's daemons are doing, from where they run. Asked every minute in a container: it imports
little."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from dcfl.flower.deploy.daemons import Daemon
from dcfl.flower.deploy.deployment_record import read_record
from dcfl.flower.deploy.kit_folder import ServerKit, SiteKit
from dcfl.flower.deploy.superlink import host_and_port, plain

REACH_SECONDS = 10.0
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
    host, port = host_and_port(address)
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except OSError as error:
        return f"{authority}: cannot be read ({error.strerror or error})"
    try:
        with socket.create_connection((host, port), timeout=REACH_SECONDS) as plain_socket:
            context.wrap_socket(plain_socket, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}"
    except (ssl.SSLError, ConnectionResetError):
        return "it does not answer with TLS"
    except socket.gaierror:
        return f"the name {host} is not known here"
    except TimeoutError:
        return "no answer: is the port open in the firewall?"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
