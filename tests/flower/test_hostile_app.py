"""A real SuperLink with TLS whose operator submits another app than the one that a site has pinned.

Whatever becomes of the process that starts apps, nothing of another one runs at the site.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from flwr.cli.build import build_fab_from_disk

from dcfl.flower.audit_log import AuditLog
from dcfl.flower.deploy.daemons import free_ports, read_record, script
from dcfl.flower.deploy.deployment import connection, down, up
from dcfl.flower.deploy.kit_writing import Kits
from dcfl.flower.deploy.submission import write_bundle
from dcfl.flower.deploy.superlink import log, run_status, submit
from tests.flower.test_sites import FEW, pictures, wait_for

pytestmark = pytest.mark.flower

APP = """
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

app = ClientApp()
server = ServerApp()

@app.query()
@app.train()
def steal(message, context):
    Path({canary!r}).write_text("ran")
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict(), dst_node_id=n, message_type=k)
                for n in nodes for k in ("train", "query.whoami")]
    for reply in grid.send_and_receive(messages, timeout=60):
        print("ANSWER", reply.error.reason if reply.has_error() else "taken", flush=True)
"""
# In every process of the sites: in the one that is named, os.fork fails as under a limit.
LIMITED = "cannot-fork"
LIMIT = """
import errno, os
fork = os.fork
def limited():
    try:
        named = open({limited!r}).read() == str(os.getpid())
    except OSError:
        named = False
    if named:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return fork()
os.fork = limited
"""
PROJECT = """
[project]
name = "dcfl-app"
version = "1.0.0"
license = "MIT"
dependencies = []
[tool.flwr.app]
publisher = "dcfl"
[tool.flwr.app.components]
serverapp = "hostile:server"
clientapp = "hostile:app"
[tool.flwr.app.config]
number = 0
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three pinned sites."""
    folder = tmp_path_factory.mktemp("pinned")
    pictures(folder / "scans")
    pin = hashlib.sha256(build_fab_from_disk(write_bundle(folder / "app"))).hexdigest()
    sites = [f'data="folder:{folder}/scans/{site}"' for site in ("north", "south", "north")]
    (folder / "modules").mkdir()
    (folder / "modules" / "sitecustomize.py").write_text(
        LIMIT.format(limited=str(folder / LIMITED))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "modules"), prepend=os.pathsep)
        up(folder / "home", 3, True, [f'{data} app-sha256="{pin}"' for data in sites])
    yield folder / "home"
    down(folder / "home")


def warm_process(home: Path, site: int) -> psutil.Process:
    node = psutil.Process(read_record(home.resolve()).nodes[site].pid)
    server = "dcfl.flower.deploy.clientapp_server"
    (warm,) = (child for child in node.children() if server in child.cmdline())
    return warm


def end_warm_process(home: Path, site: int, how: signal.Signals) -> None:
    warm = warm_process(home, site)
    warm.send_signal(how)
    wait_for(lambda: warm.status() == psutil.STATUS_ZOMBIE)


def limit_processes(home: Path, site: int) -> None:
    """The warm process cannot fork any more."""
    warm = warm_process(home, site)
    if os.geteuid():
        warm.rlimit(psutil.RLIMIT_NPROC, (0, 0))
    else:  # limits do not bind root
        (home.parent / LIMITED).write_text(str(warm.pid))


def attack(home: Path, folder: Path) -> list[str]:
    """Submit the hostile app; returns what the site answered."""
    folder.mkdir()
    (folder / "hostile.py").write_text(APP.format(canary=str(home / "canary")))
    (folder / "pyproject.toml").write_text(PROJECT)
    link = connection(home)
    run = submit(link, folder, {"number": 1})
    wait_for(lambda: run_status(link, run).startswith("finished"), 120)
    said = wait_for(lambda: [line for line in log(link, run).splitlines() if "ANSWER" in line], 60)
    return [line.partition("ANSWER ")[2] for line in said]


def test_nothing_of_another_app_runs_whatever_happens_to_its_starter(
    home: Path, tmp_path: Path
) -> None:
    """The warm process lives; then one was told to end, and its folder is gone, one was killed, and
    nobody answers there, and one cannot fork any more."""
    refused = "it runs apps with other hashes than this one's, "
    answers = attack(home, tmp_path / "first")
    end_warm_process(home, 0, signal.SIGTERM)
    end_warm_process(home, 1, signal.SIGKILL)
    limit_processes(home, 2)
    answers += attack(home, tmp_path / "second")
    assert len(answers) == 12
    assert all(answer.startswith(refused) for answer in answers)
    assert not (home / "canary").exists()
    for site in ("site-0", "site-1", "site-2"):
        entries = AuditLog(home / "memories" / site / "audit.jsonl").read().entries
        assert len(entries) == 4
        assert all(entry.outcome == "refused" for entry in entries)
        assert all(entry.reason.startswith(refused) for entry in entries)
    # The app that the sites have pinned runs, if slower.
    words = [
        *(word for word in FEW if word != "data.clients=2"),
        'data.class_names=["dark","light"]',
        "data.image_size=8",
    ]
    words += ["data.dataset=remote", "--home", str(home), "--out", str(tmp_path / "out"), "--json"]
    command = [sys.executable, "-m", "dcfl", "flower", "run", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2


def test_flowers_own_supernode_cannot_be_started_with_a_kits_files(
    home: Path, tmp_path: Path
) -> None:
    """It would check nothing."""
    address = connection(home).address
    keys = tmp_path / "keys"
    shutil.copytree(home / "keys", keys)
    kit = Kits(address, ("site-0",), keys, f"folder:{tmp_path}").write("site-0", tmp_path)
    words = ["--superlink", address, "--host", "127.0.0.1", "--port", str(free_ports(1)[0])]
    words += ["--root-certificates", str(kit / "keys" / "ca.crt")]
    words += ["--auth-supernode-private-key", str(kit / "keys" / "site-0")]
    words += ["--node-config", str(kit / "site.toml")]
    done = subprocess.run(
        [script("flower-supernode"), *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "Unable to parse the private key file" in done.stdout + done.stderr
