"""Is this machine fit? Each check is of something that could be wrong."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

import torch

from dcfl.config import Tables, experiment_from
from dcfl.data import DataSettings, load_dataset
from dcfl.engines.half_precision import avoid_broken_instructions, bfloat16_share, bfloat16_units
from dcfl.engines.placement import available_cores, choose_devices
from dcfl.models import ModelSettings, build_model
from dcfl.runs.run import Run
from dcfl.system.build import build


@dataclass(frozen=True)
class Checkup:
    what: str
    fine: bool
    detail: str


def examine() -> list[Checkup]:
    return [_examine_one(what, check) for what, check in CHECKS.items()]


def _examine_one(what: str, check: Callable[[], str]) -> Checkup:
    try:
        return Checkup(what, True, check())
    except Exception as error:  # whatever it is, that is the finding
        return Checkup(what, False, f"{type(error).__name__}: {error}")


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _packages() -> str:
    names = ("torch", "numpy", "pydantic", "typer", "rich", "safetensors", "matplotlib")
    return ", ".join([f"dcfl {build()}", *(f"{name} {version(name)}" for name in names)])


def _device() -> str:
    devices = choose_devices("auto")
    if devices[0].type == "cuda":
        return f"{torch.cuda.get_device_name(devices[0])} ({len(devices)} GPUs)"
    return f"CPU, {available_cores()} of {os.cpu_count()} cores; no GPU that torch can use"


def _half_precision() -> str:
    """What bfloat16 would gain here, measured."""
    if choose_devices("auto")[0].type == "cuda":
        return "engine.precision=bfloat16 or float16 use the GPU's own units"
    units = bfloat16_units()
    if not units:
        return "this CPU has no units for bfloat16: float32 is quickest"
    avoid_broken_instructions()
    shares = {}
    for name in ("resnet18", "cnn"):
        model = build_model(ModelSettings(name), 3, 32, 10, seed=0)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shares[name] = bfloat16_share(model, torch.zeros(2, 3, 32, 32), batch_size=64, threads=1)
    return f"{units}; {step_shares(shares)}"


def step_shares(shares: Mapping[str, float | None]) -> str:
    """The share of a float32 step's time that a bfloat16 step takes, for each model."""
    known = [(name, share) for name, share in shares.items() if share]
    missing = [name for name, share in shares.items() if not share]
    words = []
    if known:
        (first, share), *rest = known
        others = "".join(f", {share:.2f} ({name})" for name, share in rest)
        words.append(f"a bfloat16 step takes {share:.2f} of the time of float32 ({first}){others}")
    if missing:
        words.append(f"could not be measured: {', '.join(missing)}")
    return "; ".join(words)


def _folder() -> str:
    with tempfile.NamedTemporaryFile(dir="."):
        return "runs can be written to this folder"


def _data() -> str:
    digits = load_dataset(DataSettings())
    return f"{len(digits.train):,} training and {len(digits.test):,} test images"


def _training() -> str:
    """Two rounds of two clients, twice: the same bits?"""
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
    "Python": _python,
    "packages": _packages,
    "device": _device,
    "half precision": _half_precision,
    "folder": _folder,
    "built-in data": _data,
    "training": _training,
}
