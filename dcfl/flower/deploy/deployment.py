"""A SuperLink and SuperNodes on this machine, to try a deployment out: how they are started, looked
at and ended."""

from __future__ import annotations

import re
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dcfl.errors import ConfigError, NetworkError, require
from dcfl.flower.deploy.daemons import (
    LOOPBACK,
    RECORD,
    Daemon,
    Deployment,
    add_to_record,
    end_processes,
    free_ports,
    listening,
    read_record,
    script,
    start_of,
)
from dcfl.flower.deploy.keys import check_sites, make_keys
from dcfl.flower.deploy.kit_folder import SERVER_FILE, SITE_FILE
from dcfl.flower.deploy.site_check import require_usable_data
from dcfl.flower.deploy.superlink import (
    CONNECTION_NAME,
    Connection,
    RunStatus,
    ask,
    environment,
    last_line,
    newest_runs,
    online_nodes,
    plain,
)
from dcfl.flower.node_config import ANY_DATA, NodeConfig, check_keys
from dcfl.flower.roster import Roster
from dcfl.system.locks import try_lock
from dcfl.system.processes import python
from dcfl.system.storage import private_folder, storage

UP_ENDER = "`dcfl flower down`"  # the command that ends what `up` started
SUPERLINK = "superlink"  # the name of its daemon, and of its log


@dataclass(frozen=True)
class NodeStatus:
    name: str
    partition: int
    pid: int
    alive: bool
    online: bool  # as the SuperLink sees it, up to a minute late
    node: str | None


@dataclass(frozen=True)
class DeploymentStatus:
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
        return _start_all(home, called, tls, node_configs, time.monotonic() + wait)


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
    return _link(home, deployment)


def _link(home: Path, deployment: Deployment) -> Connection:
    certificate = home / "keys" / "ca.crt" if deployment.tls else None
    return Connection(deployment.address, home / "flwr", certificate, not deployment.tls)


def roster_of(home: Path) -> Roster:
    """The sites that `up` started, with their keys if they have any."""
    deployment = read_record(home.resolve())
    if not deployment.tls:
        names = tuple(node.name for node in deployment.nodes)
        return Roster(len(names), names=names)
    keys = home.resolve() / "keys"
    return Roster.of_keys([keys / f"{node.name}.pub" for node in deployment.nodes])


def status(home: Path) -> DeploymentStatus:
    """Tell who is alive, who is online, and which runs there are."""
    link = connection(home)
    deployment = read_record(home.resolve())
    alive = all(daemon.alive for daemon in deployment.daemons if daemon.partition is None)
    online = online_nodes(link) if alive else set()
    nodes = tuple(
        NodeStatus(node.name, node.partition, node.pid, node.alive, node.node in online, node.node)
        for node in deployment.nodes
        if node.partition is not None
    )
    runs = newest_runs(link) if alive else ()
    return DeploymentStatus(link.address, deployment.tls, alive, nodes=nodes, runs=runs)


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


def _start_all(
    home: Path, names: Sequence[str], tls: bool, node_configs: Sequence[str], deadline: float
) -> Connection:
    """`names`: what the sites are called. `node_configs`: one for each, or none."""
    superlink_port, *node_ports = free_ports(len(names) + 1)
    deployment = Deployment(f"{LOOPBACK}:{superlink_port}", tls)
    if tls:
        make_keys(home / "keys", names, none_missing=True)
    for leftover in home.glob("superlink.db*"):
        leftover.unlink()  # Flower does not resume runs, and old nodes would be listed for ever
    keys = home / "keys" if tls else None
    command = superlink_command(superlink_port, home / "superlink.db", keys)
    superlink = start_daemon(home, SUPERLINK, command)
    deployment = add_to_record(home, deployment, superlink)
    link = _link(home, deployment)
    wait_until(lambda: listening(superlink_port), home, deployment, deadline)
    for site, (name, port) in enumerate(zip(names, node_ports, strict=True)):
        if keys:
            ask(link, "supernode", "register", str(keys / f"{name}.pub"), CONNECTION_NAME)
        node_config = node_configs[site] if node_configs else f'data="{ANY_DATA}"'
        memories = home / "memories" / name
        private_folder(memories)
        # The quote at the end matters: Flower takes a config that ends with .toml for a file.
        node_config += f' partition-id={site} num-partitions={len(names)} memories="{memories}"'
        pair = (keys / "ca.crt", keys / name) if keys else None
        command = supernode_command(deployment.address, port, node_config, pair)
        node = replace(start_daemon(home, name, command), partition=site)
        deployment = add_to_record(home, deployment, node)
    wait_until(lambda: _all_online(home, link, deployment), home, deployment, deadline)
    named = tuple(replace(node, node=node_id(home, node)) for node in deployment.nodes)
    add_to_record(home, replace(deployment, daemons=(superlink,)), *named)
    return link


def start_daemon(
    home: Path,
    name: str,
    command: Sequence[str],
    foreground: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Daemon:
    """`foreground`: it writes where this process writes, instead of to a log of its own.
    `variables`: of its environment, where this process has none of that name."""
    log = nullcontext() if foreground else (home / "logs" / f"{name}.log").open("wb")
    with log as log_file:
        process = subprocess.Popen(
            command,
            env={**(variables or {}), **environment(home / "flwr", home)},
            cwd=home / "work",  # a module in the working folder would shadow the bundle's
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal does not reach it
        )
    process.returncode = 0  # it outlives this process: Popen must not warn that nobody waited
    return Daemon(name, process.pid, start_of(process.pid))


def node_id(home: Path, node: Daemon) -> str | None:
    """The id that the SuperLink gave to a SuperNode, which only its log tells."""
    text = plain((home / "logs" / f"{node.name}.log").read_bytes())
    ids = re.findall(r"SuperNode ID: (\d+)", text)
    return str(ids[-1]) if ids else None


def _all_online(home: Path, link: Connection, deployment: Deployment) -> bool:
    ids = {node_id(home, node) for node in deployment.nodes}
    return None not in ids and ids <= online_nodes(link)


def wait_until(
    done: Callable[[], bool], home: Path, deployment: Deployment, deadline: float
) -> None:
    while not done():
        require_alive(home, deployment)
        if time.monotonic() > deadline:
            nameless = [node for node in deployment.nodes if node_id(home, node) is None]
            late = (nameless or deployment.daemons)[0]
            raise NetworkError(f"{late.name} did not come up in time: {last_words(home, late)}")
        time.sleep(0.2)
    require_alive(home, deployment)  # who listens may be somebody else


def require_alive(home: Path, deployment: Deployment) -> None:
    for daemon in deployment.daemons:
        if not daemon.alive:
            raise NetworkError(f"{daemon.name} ended: {last_words(home, daemon)}")


def last_words(home: Path, daemon: Daemon) -> str:
    path = home / "logs" / f"{daemon.name}.log"
    if not path.is_file():  # in the foreground
        return "the lines above say why"
    text = path.read_bytes()
    farewell = re.search(r"Exit Code: \d+\n(.+)\n(.*)", plain(text))  # Flower's own
    reason = f"{farewell[1]} {farewell[2]}" if farewell else last_line(text)
    return f"{reason} (all of it in {path})"


def superlink_command(port: int, database: Path, keys: Path | None) -> list[str]:
    """It listens on loopback: its control path has no accounts. `keys`: the folder with ca.crt and
    the server's certificate; None: without TLS."""
    words = ["--host", LOOPBACK, "--port", str(port), "--disable-runtime-dependency-installation"]
    words += ["--database", str(database)]
    if keys is None:
        return [script("flower-superlink"), *words, "--insecure"]
    words += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem")]
    words += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    return [script("flower-superlink"), *words]


def supernode_command(
    address: str, port: int, node_config: str, keys: tuple[Path, Path] | None
) -> list[str]:
    """`address`: the SuperLink's. `node_config`: key=value pairs, or the path of a .toml file.
    `keys`: the certificate authority and the site's private key; None: without TLS."""
    words = ["--superlink", address, "--host", LOOPBACK, "--port", str(port)]
    words += ["--node-config", node_config]
    if keys is None:
        words += ["--insecure"]
    else:
        authority, key = map(str, keys)
        words += ["--root-certificates", authority, "--auth-supernode-private-key", key]
    return [*python("-m", "dcfl.flower.deploy.supernode"), *words]


def read_node_config(text: str) -> dict[str, object]:
    """Read what the user sets of a site's node config."""
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
    return values
