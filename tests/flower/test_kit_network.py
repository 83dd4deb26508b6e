"""Kits as hospitals use them: a server and two sites, each in a network of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcfl.flower.deploy.daemons import processes_of
from dcfl.runs.folder import RecordedRun
from tests.flower.test_sites import FEW, embedded, pictures, wait_for

pytestmark = pytest.mark.flower

MACHINES = ("server", "north", "south")
UNPLUGGED_SECONDS = 15  # under the 40 or so after which a SuperLink takes a site for gone
TAG = f"d{os.getpid() % 100_000}"  # names of interfaces have 15 characters
NETWORK = f"10.{os.getpid() % 200 + 20}.77"
AGREED = [*FEW, 'data.class_names=["dark","light"]', "data.image_size=8", "method.name=dcfl-pw"]
REMOTE = [*AGREED, "data.dataset=remote"]
ASK = """
import ssl, sys, urllib.request, urllib.error
context = ssl.create_default_context(cafile=sys.argv[2])
try:
    print(urllib.request.urlopen(sys.argv[1], data=b"", context=context, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print("unreachable")
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_not() -> str | None:
    missing = [program for program in ("ip", "nginx") if not shutil.which(program)]
    if missing:
        return f"{' and '.join(missing)}: not installed here"
    try:
        with namespace("try"):
            ip("link", "add", f"{TAG}x", "type", "veth", "peer", "name", f"{TAG}y")
            ip("link", "del", f"{TAG}x")
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not allowed here: {error.stderr.decode().strip()}"
    return None


@contextmanager
def namespace(name: str) -> Iterator[str]:
    ip("netns", "add", f"{TAG}-{name}")
    try:
        yield f"{TAG}-{name}"
    finally:
        ip("netns", "del", f"{TAG}-{name}")


@dataclass(frozen=True)
class Machine:
    """A namespace with a cable to the switch, and a kit."""

    namespace: str
    cable: str  # the switch's end
    kit: Path

    def words(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]

    def script(self, name: str, *words: str, code: int = 0) -> str:
        command = self.words(str(self.kit / name), *words)
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def plug(self, state: str) -> None:
        ip("link", "set", self.cable, state)

    def ask(self, url: str) -> str:
        command = self.words(sys.executable, "-c", ASK, url, str(self.kit / "keys" / "ca.crt"))
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("network")
    with ExitStack() as stack:
        switch = f"{TAG}s"
        ip("link", "add", switch, "type", "bridge")
        stack.callback(ip, "link", "del", switch)
        ip("link", "set", switch, "up")
        machines = {}
        for number, name in enumerate(MACHINES, start=1):
            space = stack.enter_context(namespace(name))
            cable = f"{TAG}c{number}"
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", cable, "master", switch, "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            machines[name] = Machine(space, cable, folder / "kits" / name)
        yield machines


@pytest.fixture(scope="module")
def running(network: dict[str, Machine]) -> Iterator[dict[str, Machine]]:
    """Every machine has been sent its kit, and has started it."""
    folder = network["server"].kit.parents[1]
    pictures(folder / "scans")
    for name in MACHINES:
        words = ["--superlink", f"{NETWORK}.1:8443", "--sites", "north,south"]
        words += ["--data", f"folder:{folder / 'scans' / name}"]
        dcfl = [sys.executable, "-m", "dcfl", "flower", "kit", name, *words]
        subprocess.run(dcfl, cwd=folder, check=True, capture_output=True)
        (network[name].kit / "venv").symlink_to(sys.prefix)  # what ./install would make
    with ExitStack() as stack:
        for machine in network.values():
            stack.callback(machine.script, "stop")
            machine.script("start")
        yield network
    assert not [process for m in network.values() for process in processes_of(m.kit / "state", ())]


def test_sites_reach_the_fleet_path_alone(running: dict[str, Machine]) -> None:
    assert "can be reached" in running["north"].script("status")
    status = running["server"].script("status")
    assert "\nnorth      online\nsouth      online\n" in status
    assert "ERROR" not in status
    server = f"https://{NETWORK}.1"
    assert running["north"].ask(f"{server}:8443/v1/control/list-runs") == "403"
    assert running["north"].ask(f"{server}:8443/v1/fleet/activate-node") not in ("403", "502")
    assert running["north"].ask(f"{server}:28443/v1/control/list-runs") == "unreachable"
    assert running["server"].ask("https://127.0.0.1:28443/v1/control/list-runs") != "unreachable"


def test_a_site_that_is_unplugged_for_a_while_changes_nothing(
    running: dict[str, Machine],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The weights are those of a run that has all the pictures in one place."""
    server, south = running["server"], running["south"]
    out = tmp_path / "there"
    run = server.words(str(server.kit / "run"), *REMOTE)
    began = time.monotonic()
    with subprocess.Popen([*run, "--out", str(out), "--json"], stdout=subprocess.PIPE) as training:
        wait_for(lambda: RecordedRun(out).rounds, seconds=600)
        south.plug("down")
        unplugged = time.monotonic()
        assert "can be reached" not in south.script("status", code=6)
        time.sleep(max(0.0, UNPLUGGED_SECONDS - (time.monotonic() - unplugged)))
        south.plug("up")
        said, _ = training.communicate(timeout=900)
    assert training.returncode == 0
    record_property("run_seconds", round(time.monotonic() - began, 1))
    together = [*AGREED, f"data.dataset=sites:{server.kit.parents[1] / 'scans'}"]
    usual = ["data.mean=[0.5,0.5,0.5]", "data.std=[0.25,0.25,0.25]"]
    expected = embedded(tmp_path / "here", *together, *usual)
    assert json.loads(said)["weights_sha256"] == expected
    rows = RecordedRun(out).rounds
    assert [(row["ok"], row["late"], row["failed"]) for row in rows] == [(2, 0, 0)] * 2
    assert "can be reached" in south.script("status")


def test_a_server_that_starts_again_knows_its_sites(
    running: dict[str, Machine], tmp_path: Path
) -> None:
    """Its database has their keys, and they come back by themselves."""
    server = running["server"]
    server.script("stop")
    assert "SuperLink for 2 sites" in server.script("start")
    assert "ERROR" not in (server.kit / "state" / "logs" / "superlink.log").read_text()
    server.script("run", *REMOTE, "federation.rounds=1", "--out", str(tmp_path / "out"))
    assert [row["ok"] for row in RecordedRun(tmp_path / "out").rounds] == [2]
