"""Nobody imports Flower or Ray unasked: a site has `dcfl[site]`, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EVERYTHING_BUT_THE_SIMULATION = """
import pkgutil, sys
from importlib import import_module

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ray":
            raise ModuleNotFoundError(f"{name} is not at a site", name="ray")

sys.meta_path.insert(0, Blocker())
import dcfl.flower
names = [module.name for module in pkgutil.walk_packages(dcfl.flower.__path__, "dcfl.flower.")]
assert "dcfl.flower.client_app" in names and "dcfl.flower.deploy.server_app" in names
for name in names:
    if name != "dcfl.flower.simulation":
        import_module(name)
import dcfl.cli.main, dcfl.cli.flower_verbs
assert "ray" not in sys.modules
print("imported", len(names))
"""


@pytest.mark.slow
def test_nothing_at_a_site_or_its_server_needs_ray() -> None:
    command = [sys.executable, "-c", EVERYTHING_BUT_THE_SIMULATION]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported")


ROOT = Path(__file__).parents[2]
EMBEDDED = """
from pathlib import Path
from tempfile import TemporaryDirectory
from dcfl.methods import METHODS
from tests.engines.runs import Flat, trained
with TemporaryDirectory() as folder:
    trained(Path(folder), METHODS["fedavg"](), workers=1, rounds=1, model=Flat())
"""


@pytest.mark.parametrize(
    "code",
    ["import dcfl, dcfl.cli.main", EMBEDDED],
    ids=["the command line", "an embedded run"],
)
def test_who_does_not_ask_for_flower_does_not_import_it(code: str) -> None:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    modules = done.stdout.split()
    assert "dcfl" in modules
    assert not [name for name in modules if name.partition(".")[0] in ("flwr", "ray")]
