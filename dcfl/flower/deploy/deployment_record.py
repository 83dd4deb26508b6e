"""What `dcfl flower up` has started, as recorded in processes.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.flower.deploy.daemons import LOOPBACK, Daemon
from dcfl.flower.deploy.superlink import Connection, write_private

RECORD = "processes.json"


@dataclass(frozen=True)
class Deployment:
    address: str
    tls: bool
    daemons: tuple[Daemon, ...] = ()

    @property
    def nodes(self) -> tuple[Daemon, ...]:
        return tuple(daemon for daemon in self.daemons if daemon.partition is not None)


def connection_to(home: Path, deployment: Deployment) -> Connection:
    certificate = home / "keys" / "ca.crt" if deployment.tls else None
    return Connection(deployment.address, home / "flwr", certificate, not deployment.tls)


def read_record(home: Path) -> Deployment:
    """Without daemons if there is none."""
    path = home / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        daemons = tuple(Daemon(**row) for row in record.pop("daemons"))
        return Deployment(**record, daemons=daemons)
    except FileNotFoundError:
        return Deployment(f"{LOOPBACK}:0", False)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: damaged ({error}); delete it") from error


def add_to_record(home: Path, deployment: Deployment, *started: Daemon) -> Deployment:
    deployment = replace(deployment, daemons=(*deployment.daemons, *started))
    write_private(home / RECORD, json.dumps(asdict(deployment), indent=2) + "\n")
    return deployment
