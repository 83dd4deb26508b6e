"""Flower's commands. Imports nothing that takes time: see supernode.py."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from dcfl.errors import ConfigError
from dcfl.system.installing import install_command

POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.25")  # seconds that a message waits for its process


def script(name: str) -> str:
    """A console script of this Python environment, whatever PATH says."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return str(folder / name)
    raise ConfigError(f"{name} is not installed here: {install_command('flower')}")
