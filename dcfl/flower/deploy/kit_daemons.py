"""Starts and stops the daemons of a kit."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcfl.config import to_toml
from dcfl.errors import ConfigError, NetworkError, SiteRefusal, require
from dcfl.flower.deploy.daemons import (
    ANYWHERE,
    OTHER_PORT,
    Deployment,
    add_to_record,
    listening,
    read_record,
    require_free,
)
from dcfl.flower.deploy.deployment import (
    SUPERLINK,
    down,
    make_home,
    node_id,
    require_alive,
    start_daemon,
    starting_in,
    superlink_command,
    supernode_command,
    wait_until,
)
from dcfl.flower.deploy.keys import check_sites
from dcfl.flower.deploy.kit_folder import NGINX, SERVER_FILE, SITE_FILE, ServerKit, SiteKit
from dcfl.flower.deploy.superlink import CONNECTION_NAME, ask, registered_nodes
from dcfl.flower.node_config import NodeConfig
from dcfl.flower.roster import fingerprint_in
from dcfl.flower.withholding import withheld_from
from dcfl.system.storage import private_folder, storage, write_whole

LOOK_SECONDS = 0.5  # between two looks at a daemon
LISTENING_SECONDS = 120.0  # for a server's daemon to listen; on a busy machine it takes a minute
PROXY_FILE = "fleet-proxy.conf"


def start_kit(kit: SiteKit | ServerKit, wait: float = 60.0) -> str:
    """Start the daemons in the background; returns what became of them in a line. A site that
    cannot reach its server within `wait` seconds goes on trying."""
    with _started(kit, foreground=False) as deployment:
        if isinstance(kit, ServerKit):
            count = len(kit.sites)
            return (
                f"SuperLink for {count} site{'s' * (count != 1)}, which reach it at {kit.address}"
            )
        (daemon,) = deployment.daemons
        end = time.monotonic() + wait
        while node_id(kit.state, daemon) is None and time.monotonic() < end:
            require_alive(kit.state, deployment)
            time.sleep(LOOK_SECONDS)
        if node_id(kit.state, daemon) is None:
            return f"started; {kit.address} has not answered yet, and is tried until it does"
        return f"connected to {kit.address}"


def run_kit(kit: SiteKit | ServerKit) -> None:
    """Run the daemons until one of them ends or this process is asked to end; for systemd and
    containers. They write where this process writes."""
    with _started(kit, foreground=True) as deployment:
        while all(daemon.alive for daemon in deployment.daemons):
            time.sleep(LOOK_SECONDS)
        ended = ", ".join(daemon.name for daemon in deployment.daemons if not daemon.alive)
        raise NetworkError(f"{ended}: has ended; the lines above say why")


def stop_kit(kit: SiteKit | ServerKit) -> int:
    """End the daemons; returns how many processes were ended."""
    return down(kit.state)


@contextmanager
def _started(kit: SiteKit | ServerKit, foreground: bool) -> Iterator[Deployment]:
    """Nothing is left if this or its block fails."""
    with starting_in(make_home(kit.state), "./stop"):
        if isinstance(kit, SiteKit):
            yield _start_site(kit, foreground)
        else:
            yield _start_server(kit, foreground)


def _start_site(kit: SiteKit, foreground: bool) -> Deployment:
    for path in (kit.authority, kit.key):
        require(path.is_file(), f"{path}: not there")
    try:
        node = NodeConfig.read(kit.node_config)
        withheld_from(node.withhold)
    except SiteRefusal as error:
        raise ConfigError(f"{kit.folder / SITE_FILE}: {error}") from None
    require_free(kit.port, f"{OTHER_PORT} {SITE_FILE}")
    with storage(node.memories_folder):
        private_folder(node.memories_folder)
    # A file, because Flower reads the values of a command line without escapes.
    written = kit.state / "node-config.toml"
    lines = [f"{key} = {to_toml(value)}\n" for key, value in kit.node_config.items()]
    write_whole(written, "".join(lines), private=True)
    keys = (kit.authority, kit.key)
    command = supernode_command(kit.address, kit.port, str(written), keys)
    # Every message has a process of its own: without a cache each would decode all pictures.
    cache = {"DCFL_CACHE": str(kit.state / "cache")}
    daemon = start_daemon(kit.state, kit.name, command, foreground, cache)
    return add_to_record(kit.state, Deployment(kit.address, tls=True), daemon)


def _start_server(kit: ServerKit, foreground: bool) -> Deployment:
    proxy = _proxy_command(kit)
    for path in (kit.authority, *kit.public_keys):
        require(path.is_file(), f"{path}: not there")
    require_free(kit.port, f"{OTHER_PORT} {SERVER_FILE}, and in {PROXY_FILE}")
    if proxy:
        remedy = f"end that, or agree with the sites on another ({SERVER_FILE}, {PROXY_FILE})"
        require_free(kit.public_port, remedy, ANYWHERE)
    command = superlink_command(kit.port, kit.state / "superlink.db", kit.keys)
    daemon = start_daemon(kit.state, SUPERLINK, command, foreground)
    deployment = add_to_record(kit.state, Deployment(kit.link.address, tls=True), daemon)
    _wait_for_port(kit, kit.port, deployment)
    _register_sites(kit)
    if proxy:
        daemon = start_daemon(kit.state, "proxy", proxy, foreground)
        deployment = add_to_record(kit.state, deployment, daemon)
        _wait_for_port(kit, kit.public_port, deployment)
    return deployment


def _wait_for_port(kit: ServerKit, port: int, deployment: Deployment) -> None:
    deadline = time.monotonic() + LISTENING_SECONDS
    wait_until(lambda: listening(port), kit.state, deployment, deadline)


def _register_sites(kit: ServerKit) -> None:
    """Those that the SuperLink's database does not know from a former start."""
    known = {node.key for node in registered_nodes(kit.link) or ()}
    for key in kit.public_keys:
        if fingerprint_in(key) not in known:
            _register(kit, key)


def add_site(kit: ServerKit, key: Path) -> str:
    """Add a site by its public key, NAME.pub, while the server runs or not; returns its name. Runs
    that have begun go on as they are."""
    name, fingerprint = key.stem, fingerprint_in(key)
    check_sites([*kit.sites, name])
    prints = {fingerprint_in(one) for one in kit.public_keys}
    require(fingerprint not in prints, f"{key}: is the key of another site already")
    path = kit.folder / SERVER_FILE
    text = path.read_text(encoding="utf-8")
    names = to_toml([*kit.sites, name])
    changed, count = re.subn(r"^names\s*=\s*\[[^]]*\]", f"names = {names}", text, flags=re.M)
    require(count == 1, f"{path}: write names = {names} below [sites] by hand, then ./start")
    with storage(path):
        write_whole(kit.keys / f"{name}.pub", key.read_text(encoding="utf-8"))
        write_whole(path, changed)
    if any(daemon.alive for daemon in read_record(kit.state).daemons):
        _register(kit, kit.keys / f"{name}.pub")
    return name


def _register(kit: ServerKit, key: Path) -> None:
    try:
        ask(kit.link, "supernode", "register", str(key), CONNECTION_NAME)
    except ConfigError as error:
        if "already" not in str(error):
            raise


def _proxy_command(kit: ServerKit) -> list[str]:
    if kit.proxy != NGINX:
        return []
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    program = shutil.which(NGINX, path=os.pathsep.join(folders))
    require(
        program is not None,
        f"{NGINX} is not installed here; it lets sites reach the fleet path alone. Install it, or "
        'put a proxy of your own before the SuperLink and say proxy = "none" in server.toml',
    )
    folder = kit.state / "proxy"
    with storage(folder):
        private_folder(folder)
    config = kit.folder / PROXY_FILE
    return [str(program), "-p", f"{folder}/", "-c", str(config), "-e", "stderr"]
