"""A site and its server have `dcfl[site]`, which does not bring Ray."""

from __future__ import annotations

import subprocess
import sys

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


def test_nothing_at_a_site_or_its_server_needs_ray() -> None:
    command = [sys.executable, "-c", EVERYTHING_BUT_THE_SIMULATION]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imported")
