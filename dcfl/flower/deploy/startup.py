"""Starts the processes of a local deployment and waits until all are online."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from dcfl.errors import NetworkError
from dcfl.flower.deploy.commands import superlink_command, supernode_command
from dcfl.flower.deploy.daemons import LOOPBACK, Daemon, free_ports, listening, start_of
from dcfl.flower.deploy.data_checks import require_way_in
from dcfl.flower.deploy.deployment_record import Deployment, add_to_record, connection_to
from dcfl.flower.deploy.keys import make_keys, missing_keys
from dcfl.flower.deploy.superlink import (
    CONNECTION_NAME,
    Connection,
    ask,
    environment,
    last_line,
    online_nodes,
    plain,
)
from dcfl.flower.node_config import ANY_DATA
from dcfl.system.storage import private_folder

SUPERLINK = "superlink"  # the name of its daemon, and of its log


def start_all(
    home: Path, names: Sequence[str], tls: bool, node_configs: Sequence[str], deadline: float
) -> Connection:
    """`names`: the sites'. `node_configs`: one for each, or none."""
    superlink_port, *node_ports = free_ports(len(names) + 1)
    deployment = Deployment(f"{LOOPBACK}:{superlink_port}", tls)
    if tls:
        _make_missing_keys(home, names)
    for leftover in home.glob("superlink.db*"):
        leftover.unlink()  # Flower does not resume runs, and old nodes would be listed for ever
    keys = home / "keys" if tls else None
    command = superlink_command(superlink_port, home / "superlink.db", keys)
    superlink = start_daemon(home, SUPERLINK, command)
    deployment = add_to_record(home, deployment, superlink)
    link = connection_to(home, deployment)
    wait_until(lambda: listening(superlink_port), home, deployment, deadline)
    for site, (name, port) in enumerate(zip(names, node_ports, strict=True)):
        if keys:
            ask(link, "supernode", "register", str(keys / f"{name}.pub"), CONNECTION_NAME)
            require_way_in(deployment.address, keys, name)
        node_config = node_configs[site] if node_configs else f'data="{ANY_DATA}"'
        node_config += _place_of(home, site, names)
        pair = (keys / "ca.crt", keys / name) if keys else None
        command = supernode_command(deployment.address, port, node_config, pair)
        node = replace(start_daemon(home, name, command), partition=site)
        deployment = add_to_record(home, deployment, node)
    wait_until(lambda: _all_online(home, link, deployment), home, deployment, deadline)
    named = tuple(replace(node, node=node_id(home, node)) for node in deployment.nodes)
    add_to_record(home, replace(deployment, daemons=(superlink,)), *named)
    return link


def _place_of(home: Path, site: int, names: Sequence[str]) -> str:
    memories = home / "memories" / names[site]
    private_folder(memories)
    # The quote at the end matters: Flower takes a config that ends with .toml for a file.
    return f' partition-id={site} num-partitions={len(names)} memories="{memories}"'


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
    started = start_of(process.pid)
    process.returncode = 0  # it outlives this process: Popen must not warn that nobody waited
    return Daemon(name, process.pid, started or "ended")


def _make_missing_keys(home: Path, names: Sequence[str]) -> None:
    if missing_keys(home / "keys", names):
        make_keys(home / "keys", names)


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
