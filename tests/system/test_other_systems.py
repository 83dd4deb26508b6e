"""A system without fork, fcntl and the rest of Unix, played on this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dcfl

ROOT = Path(dcfl.__file__).parents[1]

# Torch and the standard library choose what to use while they are imported, on the system that
# they are really on; dcfl is imported after all of that is gone.
WITHOUT_UNIX = """
import concurrent.futures.thread, multiprocessing.connection, os, pathlib, platform, random, signal
import subprocess, sys, tempfile
import torch, numpy, matplotlib, psutil
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "register_at_fork", "sched_getaffinity", "memfd_create"):
    delattr(os, name)
for name in ("O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "pthread_sigmask"):
    delattr(signal, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""

# All modules but __main__, which starts the program, and those that need Flower.
RUN = """
import importlib, pkgutil
import dcfl
from dcfl.errors import ConfigError

for module in pkgutil.walk_packages(dcfl.__path__, "dcfl."):
    others = ("dcfl.__main__", "dcfl.flower")
    if not module.name.startswith(others):
        importlib.import_module(module.name)

small = {"data.clients": 4, "federation.rounds": 2, "training.epochs": 1, "method.name": "moon"}
dcfl.run(out=sys.argv[1], **small)
try:
    dcfl.run(out=sys.argv[1] + "-2", **small, **{"federation.deadline": 60.0})
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_run_needs_neither_fork_nor_fcntl(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", WITHOUT_UNIX + RUN, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "need worker processes: no fork on this system" in done.stdout
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["workers"] == 1
    assert environment["workers_because"] == "no fork on this system"
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 2
