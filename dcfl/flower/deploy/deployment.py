"""A SuperLink and SuperNodes on this machine, to try a deployment out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dcfl.errors import ConfigError, require
from dcfl.flower.deploy.commands import read_node_config
from dcfl.flower.deploy.daemons import end_processes
from dcfl.flower.deploy.data_checks import require_usable_data
from dcfl.flower.deploy.deployment_record import RECORD, connection_to, read_record
from dcfl.flower.deploy.keys import check_sites
from dcfl.flower.deploy.kit_folder import SERVER_FILE, SITE_FILE
from dcfl.flower.deploy.startup import SUPERLINK, start_all
from dcfl.flower.deploy.superlink import Connection, RunStatus, newest_runs, online_nodes
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.roster import Roster
from dcfl.system.locks import try_lock
from dcfl.system.storage import private_folder, storage

UP_ENDER = "`dcfl flower down`"  # the command that ends what `up` started


@dataclass(frozen=True)
class NodeStatus:
    name: str
    partition: int
    pid: int
    alive: bool
    online: bool  # as the SuperLink sees it, up to a minute late
    node: str | None


@dataclass(frozen=True)
class Status:
    address: str
    tls: bool
    alive: bool  # the SuperLink
    nodes: tuple[NodeStatus, ...] = ()
    runs: tuple[RunStatus, ...] = ()  # the newest first


def up(
    home: Path,
    sites: int,
    tls: bool = False,
    node_configs: Sequence[str] = (),
    names: Sequence[str] = (),
    wait: float = 120.0,
) -> Connection:
    """Start a SuperLink and its sites; all are online when this returns, or nothing is left.
    `names`: what the sites are called, as far as these can be names of files."""
    require(sites >= 1, f"{sites} sites: at least one is needed")
    fits = len(node_configs) in (0, sites)
    require(fits, f"{len(node_configs)} node configs for {sites} sites: give one for each or none")
    given = [read_node_config(text) for text in node_configs]
    home = make_home(home)
    with starting_in(home, UP_ENDER):
        called = usable_names(names, sites)
        for place, values in enumerate(given):
            node = NodeConfig.read({**values, "partition-id": place, "num-partitions": sites})
            require_usable_data(called[place], node, home)
        return start_all(
            home,
            called,
            tls=tls,
            node_configs=node_configs,
            deadline=time.monotonic() + wait,
        )


@contextmanager
def starting_in(home: Path, ender: str) -> Iterator[None]:
    """For one command at a time, in a home where nothing runs; nothing is left if the block fails.
    `ender`: the command that ends what runs."""
    with _alone(home):
        require_idle(home, ender)
        end_processes(home, read_record(home).daemons)  # leftovers of one that was killed
        try:
            yield
        except BaseException:
            down(home)
            raise


def require_idle(home: Path, ender: str = UP_ENDER) -> None:
    if any(daemon.alive for daemon in read_record(home.resolve()).daemons):
        raise ConfigError(f"{home}: a deployment is running; {ender} ends it")


def usable_names(names: Sequence[str], sites: int) -> list[str]:
    """What the sites are called: by `names` if each can name a key and a log."""
    with suppress(ConfigError):
        check_sites([*names, SUPERLINK])
        if len(names) == sites:
            return [*names]
    return [f"site-{number}" for number in range(sites)]


def down(home: Path) -> int:
    """End what `up` started and all that they started; returns how many processes that were."""
    home = home.resolve()
    daemons = read_record(home).daemons
    superlink = {daemon.pid for daemon in daemons if daemon.name == SUPERLINK}
    # The SuperLink last: SuperNodes sign off from it.
    ended = end_processes(home, daemons, superlink) | end_processes(home, daemons)
    (home / RECORD).unlink(missing_ok=True)
    return len(ended)


def connection(home: Path) -> Connection:
    """The SuperLink that `up` started in this home."""
    home = home.resolve()
    deployment = read_record(home)
    if not deployment.daemons:
        kit = any((home.parent / name).is_file() for name in (SITE_FILE, SERVER_FILE))
        hint = "of a kit ./status tells" if kit else "`dcfl flower up` starts one"
        raise ConfigError(f"{home}: no deployment here; {hint}")
    return connection_to(home, deployment)


def roster_of(home: Path) -> Roster:
    """The sites that `up` started, with their keys if they have any."""
    deployment = read_record(home.resolve())
    if not deployment.tls:
        names = tuple(node.name for node in deployment.nodes)
        return Roster(len(names), names=names)
    keys = home.resolve() / "keys"
    return Roster.of_keys([keys / f"{node.name}.pub" for node in deployment.nodes])


def status(home: Path) -> Status:
    """Who is alive, who is online, and the runs."""
    link = connection(home)
    deployment = read_record(home.resolve())
    alive = all(daemon.alive for daemon in deployment.daemons if daemon.partition is None)
    online = online_nodes(link) if alive else set()
    nodes = tuple(
        NodeStatus(
            name=node.name,
            partition=node.partition,
            pid=node.pid,
            alive=node.alive,
            online=node.node in online,
            node=node.node,
        )
        for node in deployment.nodes
        if node.partition is not None
    )
    runs = newest_runs(link) if alive else ()
    return Status(link.address, deployment.tls, alive, nodes=nodes, runs=runs)


def make_home(home: Path) -> Path:
    home = home.resolve()
    # Flower parses node configs without escapes.
    require(not set('"\\\n') & set(str(home)), f"{home}: a quote or backslash in the path")
    with storage(home):
        if home.is_dir() and any(home.iterdir()) and not (home / "lock").exists():
            raise ConfigError(f"{home}: not empty and not from `dcfl flower up`; give a new folder")
        private_folder(home)  # logs and database reveal much
        (home / "lock").touch()
        for name in ("flwr", "logs", "work", "memories"):
            private_folder(home / name)
    return home


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    with (home / "lock").open("w") as file:
        if not try_lock(file):
            raise ConfigError(f"{home}: another command is starting it, or runs it")
        yield
