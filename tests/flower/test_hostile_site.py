"""Real SuperNodes, with TLS and keys, of which one claims what is not its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcfl.flower.deploy import deployment
from dcfl.flower.deploy.daemons import Daemon, free_ports, read_record, script
from dcfl.flower.deploy.deployment import connection, down, up
from dcfl.flower.deploy.keys import make_keys
from dcfl.flower.deploy.superlink import CONNECTION_NAME, Connection, ask, online_nodes
from dcfl.flower.roster import fingerprint_in
from dcfl.runs.folder import RecordedRun

pytestmark = pytest.mark.flower

DIGITS = ["data.clients=2", "federation.participation=1.0", "federation.rounds=1"]
FEW = [*DIGITS, "training.epochs=1", "server.aggregation=median"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("hostile") / "home"
    up(home, 2, tls=True)
    make_keys(home / "keys", ["mallory"])
    yield home.resolve()
    down(home)


def supernode(home: Path, key: str, name: str, claim: str) -> Daemon:
    """A further one, online, with a node config of its own choice."""
    link, keys = connection(home), home / "keys"
    command = [script("flower-supernode"), "--superlink", link.address, "--host", "127.0.0.1"]
    command += ["--port", str(free_ports(1)[0]), "--node-config", claim]
    command += ["--root-certificates", str(keys / "ca.crt")]
    command += ["--auth-supernode-private-key", str(keys / key)]
    node = deployment.start_daemon(home, name, command)
    wait_until_online(home, link, node)
    return node


def wait_until_online(home: Path, link: Connection, node: Daemon, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while deployment.node_id(home, node) not in online_nodes(link):
        assert node.alive
        assert time.monotonic() < end
        time.sleep(0.5)


def federated(home: Path, out: Path) -> tuple[RecordedRun, str]:
    """A run of one round, as a person starts it, and what it wrote on stderr."""
    command = [sys.executable, "-m", "dcfl", "flower", "run", *FEW]
    command += ["--home", str(home), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return RecordedRun.open(out), done.stderr


def test_a_hostile_site_gets_its_own_clients_and_no_others(home: Path, tmp_path: Path) -> None:
    link = connection(home)
    ask(link, "supernode", "register", str(home / "keys" / "mallory.pub"), CONNECTION_NAME)
    honest = read_record(home).nodes[1]
    os.kill(honest.pid, signal.SIGTERM)
    # Both are there before the run begins: one with a key that is not of this run, one with that of
    # site 1, each of which says that all the clients of site 0 are its own.
    mallory = supernode(home, "mallory", "mallory", 'partition-id=0 num-partitions=1 data="any"')
    liar = supernode(home, "site-1", "liar", 'partition-id=0 num-partitions=2 data="any"')
    assert deployment.node_id(home, liar) == honest.node  # an id belongs to a key

    attacked, said = federated(home, tmp_path / "attacked")
    first, second = attacked.clients
    assert (first["outcome"], second["outcome"]) == ("ok", "failed")
    assert "its key is that of site-1" in second["reason"]
    fingerprint = fingerprint_in(home / "keys" / "mallory.pub")
    assert f"node {deployment.node_id(home, mallory)} (key {fingerprint})" in said
    assert "warning: site-1 cannot be used: " in said
    assert "is not one of this run's sites" in said
    assert len(attacked.rounds[0]["notices"]) == 2
    assert "its key is that of site-1" in (attacked.folder / "report.html").read_text()
