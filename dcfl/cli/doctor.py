"""Is this machine fit? Each check is of something that could be wrong."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import torch

from dcfl.config import Tables, experiment_from
from dcfl.engines.half_precision import bfloat16_units
from dcfl.engines.placement import available_cores, choose_devices
from dcfl.runs.run import Run
from dcfl.system.build import build


@dataclass(frozen=True)
class Checkup:
    what: str
    fine: bool
    detail: str


def examine() -> list[Checkup]:
    checkups = []
    for what, check in CHECKS.items():
        try:
            checkups.append(Checkup(what, True, check()))
        except Exception as error:  # whatever it is, that is the finding
            checkups.append(Checkup(what, False, f"{type(error).__name__}: {error}"))
    return checkups


def _packages() -> str:
    names = ("torch", "numpy", "pydantic", "typer", "rich", "safetensors", "matplotlib")
    return ", ".join([f"dcfl {build()}", *(f"{name} {version(name)}" for name in names)])


def _device() -> str:
    devices = choose_devices("auto")
    if devices[0].type == "cuda":
        return f"{torch.cuda.get_device_name(devices[0])} ({len(devices)} GPUs)"
    units = bfloat16_units()
    half = f"units for bfloat16 ({units})" if units else "no units for bfloat16"
    return f"CPU, {available_cores()} of {os.cpu_count()} cores, {half}; no GPU that torch can use"


def _training() -> str:
    """Two rounds of two clients on the built-in data, twice: the same bits?"""
    tables: Tables = {"data": {"clients": 10}, "federation": {"rounds": 2, "participation": 0.2}}
    hashes = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(experiment_from(None, {**tables, "output": {"dir": folder, "report": False}}))
            seconds = [row.seconds for row in run.rounds()]
            hashes.append(run.result().summary.weights_sha256)
    if hashes[0] != hashes[1]:
        raise RuntimeError("two equal runs gave different weights")
    return f"two equal runs gave equal weights; {min(seconds):.2f} s a round"


CHECKS: dict[str, Callable[[], str]] = {
    "Python": lambda: f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    "packages": _packages,
    "device": _device,
    "training": _training,
}
