"""How long until `dcfl run` takes its first training step on cached CIFAR-10?

    python benchmarks/startup.py DATA_FOLDER [REPEATS] [FILE.json]

From the start of the process, Python's own start and the import of torch included; beside it, the
time that `import torch` takes alone. The first run fills the cache and is not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench.measure import spread
from benchmarks.records import keep
from dcfl.system.processes import python

FIRST_STEP = """
import os, sys, time
from dcfl import local_training
from dcfl.cli.main import main

def first_step(*_):
    os.write(1, f"{time.time()}\\n".encode())
    os.killpg(0, 9)

local_training._descend = first_step
main()
"""
CONFIG = Path(__file__).parents[1] / "configs" / "cifar10.toml"


def first_step(data: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", str(CONFIG), f"data.path={data}", "--out", folder]
        return _seconds(python("-c", FIRST_STEP, *words))


def import_torch() -> float:
    return _seconds(python("-c", "import time, torch; print(time.time())"))


def _seconds(command: list[str]) -> float:
    """From the start of a command to the time that it prints."""
    began = time.time()
    done = subprocess.run(command, stdout=subprocess.PIPE, start_new_session=True, env=os.environ)
    return float(done.stdout.split()[0]) - began


def main() -> None:
    data, repeats = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    first_step(data)
    found: dict[str, list[float]] = {"first step": [], "import torch": []}
    for _ in range(repeats):
        found["first step"].append(first_step(data))
        found["import torch"].append(import_torch())
    for name, seconds in found.items():
        print(f"{name}: {spread(seconds)} s")
    if len(sys.argv) > 3:
        keep(sys.argv[3], seconds=found)


if __name__ == "__main__":
    main()
