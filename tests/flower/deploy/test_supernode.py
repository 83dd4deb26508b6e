"""The warm process: each message has a process of its own, which is what Flower's would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from dcfl.flower.deploy import supernode
from dcfl.flower.deploy.clientapp_server import SCRIPT, command
from dcfl.flower.deploy.daemons import start_of
from dcfl.flower.deploy.keys import make_keys
from dcfl.flower.deploy.kit_writing import Kits

pytestmark = pytest.mark.skipif(not supernode.CAN_FORK, reason="Linux alone")
ROOT = Path(__file__).parents[3]

# Instead of Flower's client app: says what it sees, and does as its second argument says.
SERVER = """
import json, os, signal, sys, time
sys.path.insert(0, {root!r})
from dcfl.flower.deploy import clientapp_server as server
secrets = []
def told(number, frame):
    print(json.dumps({{"told": number}}), flush=True)
    sys.exit(7)
def client():
    signal.signal(signal.SIGTERM, told)
    state = {{"pid": os.getpid(), "arguments": sys.argv[1:], "folder": os.getcwd()}}
    state |= {{"variable": os.environ.get("VARIABLE"), "seen": list(secrets)}}
    state["parent"] = os.getppid()
    print(json.dumps(state), flush=True)
    secrets.append("of this process alone")
    print("to the log", file=sys.stderr, flush=True)
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "wait":
        time.sleep(60)
    if what == "raise":
        raise RuntimeError("on purpose")
    if what.isdecimal():
        sys.exit(int(what))
server.preload, server.command = lambda: None, lambda: client
server.main()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with supernode.warm_process(["-c", SERVER.format(root=str(ROOT))]) as folder:
        yield folder
    gone(folder)


def gone(folder: Path) -> None:
    wait_for(lambda: not folder.exists())


def wait_for(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


@contextmanager
def launched(folder: Path, *arguments: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [str(folder / SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    ) as process:
        yield process


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    told: dict[str, Any] = json.loads(process.stdout.readline())
    return told


def test_each_message_has_a_process_of_its_own_that_is_as_flower_started_it(
    folder: Path, tmp_path: Path
) -> None:
    seen = []
    for number in ("0", "3"):
        environment = {**os.environ, "VARIABLE": f"of {number}"}
        with launched(folder, number, "--token", "x", cwd=tmp_path, env=environment) as process:
            out, err = process.communicate()
        assert process.returncode == int(number)
        assert err == "to the log\n"
        state = json.loads(out)
        assert state["arguments"] == [number, "--token", "x"]
        assert (state["folder"], state["variable"]) == (str(tmp_path), f"of {number}")
        assert state["seen"] == []  # nothing of the message before
        seen.append(state)
    assert seen[0]["pid"] != seen[1]["pid"]
    assert seen[0]["parent"] == seen[1]["parent"] not in (os.getpid(), seen[0]["pid"])


def test_a_signal_reaches_the_work(folder: Path) -> None:
    with launched(folder, "wait") as process:
        said(process)
        process.send_signal(signal.SIGTERM)
        assert said(process) == {"told": signal.SIGTERM}
        assert process.wait(60) == 7


def test_a_killed_launcher_takes_the_work_with_it(folder: Path) -> None:
    with launched(folder, "wait") as process:
        pid = said(process)["pid"]
        process.kill()
        wait_for(lambda: start_of(pid) is None)


def test_killed_work_ends_the_launcher_and_the_next_message_is_served(folder: Path) -> None:
    with launched(folder, "wait") as process:
        os.kill(said(process)["pid"], signal.SIGKILL)
        assert process.wait(60) == 1
    with launched(folder, "raise") as process:
        _, err = process.communicate()
        assert process.returncode == 1
        assert "on purpose" in err
    with launched(folder, "0") as process:
        assert process.wait(60) == 0


def test_without_the_warm_process_it_is_flowers_own_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\necho "the real one: $@"\n')
    real.chmod(0o700)
    monkeypatch.setattr(supernode, "script", lambda name: str(real))
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    supernode._write_launcher(lonely)
    with launched(lonely, "--token", "x y") as process:
        assert process.communicate()[0] == "the real one: --token x y\n"


def test_a_process_that_cannot_fork_leaves_the_work_to_flowers_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of processes, which here binds but once."""
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\necho "the real one: $@"\n')
    real.chmod(0o700)
    monkeypatch.setattr(supernode, "script", lambda name: str(real))
    limited = """
import errno, os
fork, failures = os.fork, [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")]
def once():
    if failures:
        raise failures.pop()
    return fork()
os.fork = once
"""
    server = ["-c", limited + SERVER.format(root=str(ROOT))]
    with supernode.warm_process(server) as folder:
        with launched(folder, "--token", "x y") as process:
            assert process.communicate()[0] == "the real one: --token x y\n"
        with launched(folder, "0") as process:
            assert said(process)["arguments"] == ["0"]
    gone(folder)


def test_the_warm_process_ends_with_a_killed_supernode(tmp_path: Path) -> None:
    text = SERVER.format(root=str(ROOT))
    program = (
        "import sys, time\n"
        "from dcfl.flower.deploy.supernode import warm_process\n"
        f"with warm_process(['-c', {text!r}]) as folder:\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as node:
        assert node.stdout is not None
        folder = Path(node.stdout.readline().strip())
        assert folder.stat().st_mode & 0o777 == 0o700
        with launched(folder, "0") as process:
            server = said(process)["parent"]
        node.kill()
    gone(folder)
    wait_for(lambda: start_of(server) is None)


def test_a_warm_process_that_is_told_to_end_leaves_nothing(folder: Path) -> None:
    with launched(folder, "0") as process:
        os.kill(said(process)["parent"], signal.SIGTERM)
    gone(folder)


def test_what_a_message_needs_is_imported_before_without_a_thread() -> None:
    program = (
        "import os, sys\n"
        "from dcfl.flower.deploy.clientapp_server import preload\n"
        "preload()\n"
        "print('torch' in sys.modules, 'dcfl.flower.client_app' in sys.modules,\n"
        "      len(os.listdir('/proc/self/task')))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert shown.stdout.decode().split() == ["True", "True", "1"], shown.stderr


def test_flowers_command_is_where_it_is_looked_for() -> None:
    assert command().__name__ == "flwr_clientapp"


@pytest.mark.parametrize("joined", [False, True])
def test_flower_gets_the_key_of_a_kit_in_its_own_form(joined: bool, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["north"])
    kit = Kits("localhost:8443", ("north",), tmp_path / "keys").write("north", tmp_path)
    own = load_ssh_private_key((tmp_path / "keys" / "north").read_bytes(), None)
    words = [supernode.KEY, str(kit / "keys" / "north")]
    told = supernode._with_readable_key(["=".join(words)] if joined else words)
    assert told[0] == supernode.KEY
    read = load_ssh_private_key(Path(told[1]).read_bytes(), None)
    assert read.private_numbers() == own.private_numbers()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="OpenSSH"):
        load_ssh_private_key((kit / "keys" / "north").read_bytes(), None)
