"""The daemons of a kit, with programs that only sleep in the place of Flower's."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcfl.errors import ConfigError, NetworkError
from dcfl.flower.deploy import kit_daemons, kit_folder
from dcfl.flower.deploy.daemons import ANYWHERE, free_ports, in_use, processes_of
from dcfl.flower.deploy.kit_daemons import run_kit, start_kit, stop_kit
from dcfl.flower.deploy.kit_folder import (
    ServerKit,
    SiteKit,
    kit_status,
    last_lines,
    open_kit,
)
from dcfl.flower.deploy.kit_writing import Kits
from dcfl.flower.deploy.superlink import RegisteredNode
from dcfl.flower.roster import fingerprint_in

CONNECTED = (
    "import os, time; print(os.environ.get('DCFL_CACHE')); "
    "print('SuperNode ID: 7', flush=True); time.sleep(60)"
)
ALONE = "import time; print('Connection attempt failed', flush=True); time.sleep(60)"
REFUSED = "print('INFO : hello'); print('the key is not known there', flush=True)"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With the kits a and server."""
    public, superlink, supernode = free_ports(3)
    kits = Kits(f"localhost:{public}", ("a",), tmp_path / "keys")
    kits.make_missing_keys()
    for name, file, port in (("a", "site.toml", supernode), ("server", "server.toml", superlink)):
        config = kits.write(name, tmp_path) / file
        config.write_text(re.sub(r"(?m)^port = \d+", f"port = {port}", config.read_text()))
    yield tmp_path
    for name in ("a", "server"):
        stop_kit(open_kit(tmp_path / name))


@pytest.fixture
def site(folder: Path) -> SiteKit:
    kit = open_kit(folder / "a")
    assert isinstance(kit, SiteKit)
    return kit


@pytest.fixture
def server(folder: Path) -> ServerKit:
    kit = open_kit(folder / "server")
    assert isinstance(kit, ServerKit)
    return kit


@pytest.fixture
def supernode(monkeypatch: pytest.MonkeyPatch) -> Any:
    asked: list[tuple[Any, ...]] = []

    def become(code: str) -> list[tuple[Any, ...]]:
        def command(*arguments: Any) -> list[str]:
            asked.append(arguments)
            return [sys.executable, "-c", code]

        monkeypatch.setattr(kit_daemons, "supernode_command", command)
        monkeypatch.setattr(kit_daemons, "superlink_command", command)
        return asked

    return become


def test_a_site_starts_and_stops(site: SiteKit, supernode: Any) -> None:
    asked = supernode(CONNECTED)
    assert start_kit(site) == f"connected to {site.address}"
    ((address, port, node_config, keys),) = asked
    assert (address, port, keys) == (site.address, site.port, (site.authority, site.key))
    written = Path(node_config)
    assert written.stat().st_mode & 0o777 == 0o600
    assert f'memories = "{site.folder}/state/memories"' in written.read_text()
    assert f"{site.state}/cache\n" in (site.state / "logs" / "a.log").read_text()
    with pytest.raises(ConfigError, match=r"is running; \./stop ends it"):
        start_kit(site)
    assert [daemon.alive for daemon in kit_status(site).daemons] == [True]
    assert stop_kit(site) == 1
    assert not processes_of(site.state, ())
    assert stop_kit(site) == 0


def test_a_site_without_its_server_goes_on_trying(site: SiteKit, supernode: Any) -> None:
    supernode(ALONE)
    assert "has not answered yet" in start_kit(site, wait=0.5)
    (daemon,) = kit_status(site).daemons
    assert daemon.alive


def test_a_site_that_ends_says_why_and_leaves_nothing(site: SiteKit, supernode: Any) -> None:
    supernode(REFUSED)
    with pytest.raises(NetworkError, match=r"a ended: the key is not known there.*logs/a\.log"):
        start_kit(site)
    assert kit_status(site).daemons == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("memories =", "memory =", "did you mean memories"),
        ("memories =", 'withhold = "size"\nmemories =', "did you mean sizes"),
        ("memories =", 'audit = "a\\u0000"\nmemories =', "audit .* a character that no path has"),
    ],
)
def test_a_misspelt_key_or_word_names_the_file(
    old: str, new: str, said: str, site: SiteKit, supernode: Any
) -> None:
    supernode(CONNECTED)
    config = site.folder / "site.toml"
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=rf"site\.toml: .*{said}"):
        start_kit(open_kit(site.folder))


def test_a_server_registers_its_sites_and_starts_its_proxy(
    server: ServerKit, supernode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    supernode(CONNECTED)
    asked: list[str] = []
    known: list[str] = []

    def ask(link: Any, *words: str) -> None:
        asked.append(words[2])
        if words[2] in known:  # as Flower says it when its database knows the key
            raise ConfigError("SuperLink x: Public key already in use")
        known.append(words[2])

    monkeypatch.setattr(kit_daemons, "ask", ask)
    fake_proxy(monkeypatch)
    for _ in range(2):  # the database outlives a stop
        assert start_kit(server) == f"SuperLink for 1 site, which reach it at {server.address}"
        daemons = kit_status(server).daemons
        assert [daemon.name for daemon in daemons] == ["superlink", "proxy"]
        assert stop_kit(server) == 2
    assert asked == [str(server.keys / "a.pub")] * 2  # nobody could say whether it is known
    there = [RegisteredNode(fingerprint_in(server.keys / "a.pub"), online=False)]
    monkeypatch.setattr(kit_daemons, "registered_nodes", lambda link: there)
    start_kit(server)
    assert len(asked) == 2  # Flower logs an error for a key that it has


def fake_proxy(monkeypatch: pytest.MonkeyPatch, code: str = CONNECTED) -> None:
    monkeypatch.setattr(kit_daemons, "listening", lambda port: True)
    monkeypatch.setattr(kit_daemons, "_proxy_command", lambda kit: [sys.executable, "-c", code])


def test_a_proxy_that_ends_is_not_taken_for_the_one_who_listens(
    server: ServerKit, supernode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    supernode(CONNECTED)
    monkeypatch.setattr(kit_daemons, "ask", lambda *_: None)
    fake_proxy(monkeypatch, "print('bind() failed', flush=True)")
    monkeypatch.setattr(kit_daemons, "listening", lambda port: time.sleep(0.5) or True)
    with pytest.raises(NetworkError, match=r"proxy ended: bind\(\) failed"):
        start_kit(server)
    assert kit_status(server).daemons == ()


def test_a_port_that_is_taken_is_named_and_nothing_is_started(
    site: SiteKit, server: ServerKit, supernode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = supernode(CONNECTED)
    fake_proxy(monkeypatch)
    taken: list[tuple[SiteKit | ServerKit, int, str, str]] = [
        (site, site.port, "127.0.0.1", r"set another port in \[superlink\] of site\.toml"),
        (server, server.port, "127.0.0.1", r"of server\.toml, and in fleet-proxy\.conf"),
        (server, server.public_port, "0.0.0.0", "agree with the sites on another"),
    ]
    for kit, port, host, remedy in taken:
        with (
            socket.create_server((host, port)),
            pytest.raises(NetworkError, match=f"^port {port} is in use .*: .*{remedy}"),
        ):
            start_kit(kit)
        assert kit_status(kit).daemons == ()
    assert asked == []


def test_a_port_without_a_listener_is_free() -> None:
    (port,) = free_ports(1)
    assert not in_use(port)
    with socket.create_server(("127.0.0.1", port)) as listener:
        assert in_use(port)
        assert in_use(port, ANYWHERE)
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            pass  # what is left of it waits for minutes, and hinders no daemon
    assert not in_use(port)


@pytest.mark.slow
def test_a_server_looks_at_its_proxy_and_lists_its_sites(
    server: ServerKit, supernode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    supernode(CONNECTED)
    monkeypatch.setattr(kit_daemons, "ask", lambda *_: None)
    fake_proxy(monkeypatch)
    start_kit(server)
    obstacles = {server.link.address: "", f"127.0.0.1:{server.public_port}": "no TLS there"}
    monkeypatch.setattr(kit_folder, "unreachable", lambda where, _: obstacles[where])
    node = RegisteredNode(fingerprint_in(server.keys / "a.pub"), online=True)
    answers: list[tuple[list[RegisteredNode] | None, dict[str, str]]] = [
        ([node], {"a": "online"}),
        ([node._replace(online=False)], {"a": "not online"}),
        ([node._replace(key="SHA256:other")], {"a": "not registered"}),
        (None, {}),
    ]
    for nodes, sites in answers:
        monkeypatch.setattr(kit_folder, "registered_nodes", lambda link, nodes=nodes: nodes)
        status = kit_status(server)
        assert status.sites == sites
        assert {way.address: way.obstacle for way in status.ways} == obstacles
        assert not status.well
    obstacles[f"127.0.0.1:{server.public_port}"] = ""
    assert kit_status(server).well


def test_what_a_check_leaves_in_the_log_is_no_error() -> None:
    """Lines of Flower's, after `./check` of a site and `./status`."""
    strange = "ERROR : [/v1/fleet/activate-node][ApiError:2004] Attempted ..., No SuperNode found"
    log = f"""
INFO : first
{strange}
ERROR : [/v1/fleet/activate-node][ApiError:2003] Attempted to register SuperNode with public key: \
b'--BEGIN', exception: Heartbeat interval 0.0 is out of bounds [1, 2].
2026 INFO [uvicorn.access] 127.0.0.1:3 - "POST /v1/fleet/activate-node HTTP/1.1" 400
INFO :      ControlServicer.ListNodes
2026 INFO [uvicorn.access] 127.0.0.1:3 - "POST /v1/control/list-nodes HTTP/1.1" 200
"""
    assert last_lines(log) == ("INFO : first", strange)


def test_without_nginx_nothing_is_started(
    server: ServerKit, supernode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = supernode(CONNECTED)
    monkeypatch.setattr("dcfl.flower.deploy.kit_daemons.shutil.which", lambda *_, **__: None)
    with pytest.raises(ConfigError, match="nginx is not installed here"):
        start_kit(server)
    assert asked == []


RUN = """
import sys
from pathlib import Path
from dcfl.errors import DCFLError
from dcfl.flower.deploy import kit_daemons
from dcfl.flower.deploy.kit_folder import open_kit
from dcfl.system.processes import end_when_terminated
end_when_terminated()
kit_daemons.supernode_command = lambda *_: [sys.executable, "-c", sys.argv[2]]
try:
    kit_daemons.run_kit(open_kit(Path(sys.argv[1])))
except DCFLError as error:
    sys.exit(str(error))
"""


def test_in_the_foreground_it_ends_with_its_daemon(site: SiteKit, supernode: Any) -> None:
    supernode("print('why', flush=True)")
    with pytest.raises(NetworkError, match="a: has ended"):
        run_kit(site)
    assert kit_status(site).daemons == ()


@pytest.mark.slow
def test_in_the_foreground_it_takes_its_daemon_with_it(site: SiteKit) -> None:
    command = [sys.executable, "-c", RUN, str(site.folder), CONNECTED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "/state/cache" in running.stdout.readline()  # of the daemon: it writes there
        assert processes_of(site.state, ())
        with pytest.raises(ConfigError, match="another command"):
            start_kit(site)
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(20) != 0
    assert not processes_of(site.state, ())


def test_asking_how_it_is_costs_little() -> None:
    """A container asks every minute."""
    code = "import dcfl.flower.deploy.kit_folder, sys; print('torch' in sys.modules)"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", time.monotonic() - began
