"""A SuperLink and SuperNodes on this machine, to try a deployment out."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dcfl.errors import ConfigError, NetworkError, require
from dcfl.flower.deploy.daemons import Daemon, end, start_of
from dcfl.flower.deploy.keys import make_keys, missing_keys
from dcfl.flower.deploy.superlink import (
    LOOPBACK,
    NAME,
    Connection,
    RunStatus,
    ask,
    environment,
    last_line,
    newest_runs,
    online_nodes,
    plain,
    script,
    write_private,
)
from dcfl.flower.node_config import ANY, check_keys
from dcfl.flower.roster import Roster
from dcfl.system.locks import try_lock
from dcfl.system.storage import private_folder, storage

_RECORD = "processes.json"


@dataclass(frozen=True)
class Deployment:
    """What `up` started, as it stands in processes.json."""

    address: str
    tls: bool
    daemons: tuple[Daemon, ...] = ()

    @property
    def nodes(self) -> tuple[Daemon, ...]:
        return tuple(daemon for daemon in self.daemons if daemon.partition is not None)


@dataclass(frozen=True)
class NodeStatus:
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
    home: Path, sites: int, tls: bool = False, node_configs: Sequence[str] = (), wait: float = 120.0
) -> Connection:
    """Start a SuperLink and its sites; all are online when this returns, or nothing is left."""
    require(sites >= 1, f"{sites} sites: at least one is needed")
    fits = len(node_configs) in (0, sites)
    require(fits, f"{len(node_configs)} node configs for {sites} sites: give one for each or none")
    for text in node_configs:
        _check_node_config(text)
    home = _make_home(home)
    with _alone(home):
        if any(daemon.alive for daemon in _read(home).daemons):
            raise ConfigError(f"{home}: a deployment is running; `dcfl flower down` ends it")
        end(home, _read(home).daemons)  # leftovers of one that was killed
        try:
            return _start_all(home, sites, tls, node_configs, time.monotonic() + wait)
        except BaseException:
            down(home)
            raise


def down(home: Path) -> int:
    """End what `up` started and all that came of it; how many processes that were."""
    home = home.resolve()
    daemons = _read(home).daemons
    superlink = {daemon.pid for daemon in daemons if daemon.partition is None}
    # The SuperLink last: a SuperNode takes its leave from it.
    ended = end(home, daemons, superlink) | end(home, daemons)
    (home / _RECORD).unlink(missing_ok=True)
    return len(ended)


def connection(home: Path) -> Connection:
    """The SuperLink that `up` started in this home."""
    home = home.resolve()
    deployment = _read(home)
    if not deployment.daemons:
        raise ConfigError(f"{home}: no deployment here; `dcfl flower up` starts one")
    return _connection(home, deployment)


def roster_of(home: Path) -> Roster:
    """The sites that `up` started, by their keys if they have some."""
    deployment = _read(home.resolve())
    if not deployment.tls:
        return Roster(len(deployment.nodes))
    keys = home.resolve() / "keys"
    return Roster.of_keys([keys / f"{node.name}.pub" for node in deployment.nodes])


def status(home: Path) -> Status:
    """Who is alive, who is online, and the runs."""
    link = connection(home)
    deployment = _read(home.resolve())
    alive = all(daemon.alive for daemon in deployment.daemons if daemon.partition is None)
    online = online_nodes(link) if alive else set()
    nodes = tuple(
        NodeStatus(node.partition, node.pid, node.alive, node.node in online, node.node)
        for node in deployment.nodes
        if node.partition is not None
    )
    return Status(link.address, deployment.tls, alive, nodes, newest_runs(link) if alive else ())


def _start_all(
    home: Path, sites: int, tls: bool, node_configs: Sequence[str], deadline: float
) -> Connection:
    superlink_port, *node_ports = _free_ports(sites + 1)
    deployment = Deployment(f"{LOOPBACK}:{superlink_port}", tls)
    if tls:
        _make_missing_keys(home, sites)
    for leftover in home.glob("superlink.db*"):
        leftover.unlink()  # Flower does not resume runs, and old nodes would be listed for ever
    superlink = _start(home, "superlink", _superlink_command(home, superlink_port, tls))
    deployment = _write(home, deployment, superlink)
    link = _connection(home, deployment)
    _wait_until(lambda: _listening(superlink_port), home, deployment, deadline)
    for index, port in enumerate(node_ports):
        if tls:
            ask(link, "supernode", "register", str(home / "keys" / f"site-{index}.pub"), NAME)
        own = node_configs[index] if node_configs else f'data="{ANY}"'  # they are this user's
        command = _supernode_command(home, deployment, index, port, sites, own)
        node = replace(_start(home, f"site-{index}", command), partition=index)
        deployment = _write(home, deployment, node)
    _wait_until(lambda: _all_online(home, link, deployment), home, deployment, deadline)
    named = tuple(replace(node, node=_node_id(home, node)) for node in deployment.nodes)
    _write(home, replace(deployment, daemons=(superlink,)), *named)
    return link


def _superlink_command(home: Path, port: int, tls: bool) -> list[str]:
    keys = home / "keys"
    security = ["--insecure"]
    if tls:
        security = ["--ssl-ca-certfile", str(keys / "ca.crt")]
        security += ["--ssl-certfile", str(keys / "server.pem")]
        security += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    return [
        *(script("flower-superlink"), "--host", LOOPBACK, "--port", str(port)),
        *("--disable-runtime-dependency-installation", "--database", str(home / "superlink.db")),
        *security,
    ]


def _supernode_command(
    home: Path, deployment: Deployment, index: int, port: int, sites: int, own: str
) -> list[str]:
    security = ["--insecure"]
    if deployment.tls:
        security = ["--root-certificates", str(home / "keys" / "ca.crt")]
        security += ["--auth-supernode-private-key", str(home / "keys" / f"site-{index}")]
    memories = home / "memories" / f"site-{index}"
    private_folder(memories)
    # The quote at the end matters: Flower takes a config that ends in .toml for a file.
    config = f'{own} partition-id={index} num-partitions={sites} memories="{memories}"'
    return [
        *(script("flower-supernode"), "--superlink", deployment.address),
        *("--host", LOOPBACK, "--port", str(port), "--node-config", config.strip()),
        *security,
    ]


def _check_node_config(text: str) -> None:
    pair = r"""([A-Za-z0-9_-]+)=("[^"]*"|'[^']*'|[^\s"']+)"""
    hint = "give key=value pairs with strings in quotes"
    require(not re.sub(pair, "", text).strip(), f"node config {text!r}: {hint}")
    pairs = re.findall(pair, text)
    try:
        values = tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"node config {text!r}: {hint} ({error})") from None
    check_keys(values)
    taken = values.keys() & {"partition-id", "num-partitions", "memories"}
    require(not taken, f"node config {text!r}: {', '.join(taken)} is set by `dcfl flower up`")


def _start(home: Path, name: str, command: Sequence[str]) -> Daemon:
    with (home / "logs" / f"{name}.log").open("wb") as log_file:
        process = subprocess.Popen(
            command,
            env=environment(home / "flwr", home),
            cwd=home / "work",  # a module in the working folder would shadow the bundle's
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is not meant for it
        )
    began = start_of(process.pid)
    process.returncode = 0  # it outlives us: Popen is not to warn that nobody waits for it
    return Daemon(name, process.pid, began or "ended")


def _make_missing_keys(home: Path, sites: int) -> None:
    names = [f"site-{index}" for index in range(sites)]
    if missing_keys(home / "keys", names):
        make_keys(home / "keys", names)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:  # all bound at once, so that all differ
            each.bind((LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def _node_id(home: Path, node: Daemon) -> str | None:
    """The id that the SuperLink gave to a SuperNode, which only its log tells."""
    text = plain((home / "logs" / f"{node.name}.log").read_bytes())
    found = re.findall(r"SuperNode ID: (\d+)", text)
    return str(found[-1]) if found else None


def _all_online(home: Path, link: Connection, deployment: Deployment) -> bool:
    ids = {_node_id(home, node) for node in deployment.nodes}
    return None not in ids and ids <= online_nodes(link)


def _wait_until(
    done: Callable[[], bool], home: Path, deployment: Deployment, deadline: float
) -> None:
    while not done():
        for daemon in deployment.daemons:
            if not daemon.alive:
                raise NetworkError(f"{daemon.name} ended: {_why(home, daemon)}")
        if time.monotonic() > deadline:
            nameless = [node for node in deployment.nodes if _node_id(home, node) is None]
            late = (nameless or deployment.daemons)[0]
            raise NetworkError(f"{late.name} did not come up in time: {_why(home, late)}")
        time.sleep(0.2)


def _why(home: Path, daemon: Daemon) -> str:
    path = home / "logs" / f"{daemon.name}.log"
    text = path.read_bytes()
    said = re.search(r"Exit Code: \d+\n(.+)\n(.*)", plain(text))  # Flower's own farewell
    reason = f"{said[1]} {said[2]}" if said else last_line(text)
    return f"{reason} (all of it in {path})"


def _make_home(home: Path) -> Path:
    home = home.resolve()
    # Flower reads node configs with a pattern that knows no escapes.
    require(not set('"\\\n') & set(str(home)), f"{home}: a quote or backslash in the path")
    with storage(home):
        if home.is_dir() and any(home.iterdir()) and not (home / "lock").exists():
            raise ConfigError(f"{home}: not empty and not from `dcfl flower up`; give a new folder")
        private_folder(home)  # the logs and the database tell much
        (home / "lock").touch()
        for name in ("flwr", "logs", "work", "memories"):
            private_folder(home / name)
    return home


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    with (home / "lock").open("w") as file:
        if not try_lock(file):
            raise ConfigError(f"{home}: another `dcfl flower up` is at work here")
        yield


def _connection(home: Path, deployment: Deployment) -> Connection:
    certificate = home / "keys" / "ca.crt" if deployment.tls else None
    return Connection(deployment.address, home / "flwr", certificate, not deployment.tls)


def _read(home: Path) -> Deployment:
    """What stands in processes.json; nothing when there is none."""
    path = home / _RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        daemons = tuple(Daemon(**row) for row in record.pop("daemons"))
        return Deployment(**record, daemons=daemons)
    except FileNotFoundError:
        return Deployment(f"{LOOPBACK}:0", False)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: damaged ({error}); delete it") from error


def _write(home: Path, deployment: Deployment, *more: Daemon) -> Deployment:
    deployment = replace(deployment, daemons=(*deployment.daemons, *more))
    write_private(home / _RECORD, json.dumps(asdict(deployment), indent=2) + "\n")
    return deployment
