"""Nobody but us gets into the Ray that a simulation starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flower
ROOT = Path(__file__).parents[2]

INSIDE = """
import json, os, sys
from pathlib import Path
import dcfl.flower, grpc, psutil, ray, torch
from dcfl.engines.engine import Session
from dcfl.engines.placement import Placement
from dcfl.experiment import Experiment
from dcfl.flower.simulation import simulation
from tests import toys
from tests.flower.deploy.test_deployment import listeners
from tests.engines.runs import Flat

def call(address, token):
    said = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=20, metadata=said)
            return "OK"
        except grpc.RpcError as error:
            return error.code().name

runner = toys.runner("fedavg", Flat(), toys.federated(4))
placement = Placement([torch.device("cpu")], "for a test")
now = Session("a" * 32, Experiment(), runner, placement, Path(sys.argv[1]))
with simulation(now):
    this = psutil.Process()
    ours = {process.pid for process in (this, *this.children(recursive=True))}
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    address = ray.get_runtime_context().gcs_address
    print(json.dumps({
        "listeners": sorted(listeners(ours)),
        "processes": len(ours),
        "calls": [call(address, token) for token in ("", "f" * 64, os.environ["RAY_AUTH_TOKEN"])],
        "modes": [oct(folder.stat().st_mode & 0o777) for folder in (session, *session.parents)],
        "folder": str(session),
    }))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By a process that runs a simulation."""
    command = [sys.executable, "-c", INSIDE, str(tmp_path_factory.mktemp("memories"))]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_ray_listens_on_loopback_alone(seen: Any) -> None:
    assert seen["processes"] > 3
    assert seen["listeners"]
    assert {*seen["listeners"]} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_ray_lets_nobody_in_without_its_token(seen: Any) -> None:
    assert seen["calls"] == ["UNAUTHENTICATED", "UNAUTHENTICATED", "OK"]


def test_rays_open_folder_lies_in_a_closed_one_and_is_gone_afterwards(seen: Any) -> None:
    assert "0o700" in seen["modes"]
    assert not Path(seen["folder"]).exists()
