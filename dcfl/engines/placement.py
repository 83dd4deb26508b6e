"""Where clients run: how many processes, on which devices, and why."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.experiment import EngineSettings
from dcfl.messages import num_bytes
from dcfl.models.output import FeatureModel
from dcfl.system.memory import available_bytes
from dcfl.system.processes import python

LEAST_MOST, MOST_PER_CORE = 8, 4  # workers that may be asked for
SECONDS = 120  # to import torch and start CUDA on a busy machine

QUESTION = """
import json, torch
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""


def name_of(gpu: torch.device) -> str | None:
    """The GPU behind a device; None if it cannot be asked."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.get_device_name(gpu)
    names = _all_gpus()
    return names[gpu.index] if gpu.index is not None and gpu.index < len(names) else None


@cache
def _all_gpus() -> list[str]:
    """The names of all GPUs, asked in another process: this one must not start CUDA before it
    forks. Empty if nobody answers."""
    command = python("-c", QUESTION)
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return [str(name) for name in json.loads(answer.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []


NO_FORK = "no fork on this system"


class Placement(NamedTuple):
    devices: list[torch.device]  # one per worker; if there is one, this process trains
    reason: str
    worker_bytes: int = 0  # of memory that each takes as it trains on the CPU; 0: not known

    @property
    def name(self) -> str:
        """The devices as the config names them: `cpu`, `cuda:0`, `cuda:0,1`."""
        kind = self.devices[0].type
        numbers = sorted({device.index for device in self.devices if device.index is not None})
        return f"{kind}:{','.join(map(str, numbers))}" if numbers else kind


class Load(NamedTuple):
    model: FeatureModel
    images: Tensor  # a few of those it trains on
    batch_size: int


def place(engine: EngineSettings, cohort: int, load: Load) -> Placement:
    devices, workers, threads = choose_devices(engine.device), engine.workers, engine.threads
    if workers != "auto":
        if workers > 1 and (obstacle := _obstacle(devices)):
            raise ConfigError(f"engine.workers = {workers}: {obstacle}; use engine.workers = 1")
        return _as_asked(workers, devices, load)
    if obstacle := _obstacle(devices):
        return Placement(devices[:1], obstacle)
    if sys.platform == "darwin":
        return Placement(devices[:1], "the libraries of macOS do not all survive a fork")
    if devices[0].type == "cuda":
        each = engine.workers_per_device
        reason = f"{each} for each GPU, as asked for" if each > 1 else "one for each GPU"
        return Placement(devices * each, reason if len(devices) * each > 1 else "one GPU")
    cores = available_cores()
    # Even for a single client a second worker helps: it evaluates the round before.
    useful = max(1, min(cores // threads, max(cohort, 2)))
    if few := _fitting(devices, useful, load, "memory for {}"):
        return few
    need = training_bytes(load)
    per = f"{threads} thread{'s' if threads > 1 else ''} each"
    if useful < cores // threads:
        clients = f"{cohort} client{'s' if cohort > 1 else ''} a round"
        return Placement(devices * useful, f"{clients}, {per}", need)
    return Placement(devices * useful, f"{cores} core{'s' if cores > 1 else ''}, {per}", need)


def _as_asked(workers: int, devices: list[torch.device], load: Load) -> Placement:
    """More processes than some for each core only wait for one another, and take memory."""
    cores, reason = available_cores(), "as asked for"
    if workers > (most := max(LEAST_MOST, MOST_PER_CORE * cores)):
        reason = f"{workers:,} asked for, more than {cores} core{'s' if cores > 1 else ''} can use"
    count = min(workers, most)
    if workers == 1 or devices[0].type == "cuda":
        return Placement([devices[i % len(devices)] for i in range(count)], reason)
    few = _fitting(devices, count, load, f"memory for {{}} of {workers:,} asked for")
    return few or Placement(devices * count, reason, training_bytes(load))


def _fitting(devices: list[torch.device], wanted: int, load: Load, reason: str) -> Placement | None:
    """As many workers on the CPU as memory has room for; None: all that are wanted."""
    need = training_bytes(load)
    fitting = max(1, (available_bytes() - conducting_bytes(load.model)) // need)
    if fitting >= wanted:
        return None
    text = f"{reason.format(fitting)}: a client takes about {need / 1e9:.1f} GB"
    return Placement(devices * fitting, text, need)


def choose_devices(name: str) -> list[torch.device]:
    """`auto`, `cpu`, `cuda` (all GPUs) or `cuda:0,1`.

    This counts the GPUs without starting CUDA, which workers forked afterwards could not use.
    """
    count = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not count):
        return [torch.device("cpu")]
    _, _, numbers = name.partition(":")
    wanted = [int(number) for number in numbers.split(",")] if numbers else list(range(count))
    if not wanted or max(wanted) >= count:
        raise ConfigError(
            f'engine.device = {name!r}, and torch sees {count} GPUs here: use "auto" or "cpu"'
        )
    return [torch.device("cuda", number) for number in wanted]


def available_cores() -> int:
    """The cores that this process may use, by its affinity and its container's quota."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def training_bytes(load: Load) -> int:
    """An estimate for one process that trains this model: five times the model (weights, gradient,
    momentum, reply, broadcast) and twice the outputs of its layers."""
    model, images = load.model, load.images
    outputs = 0

    def count(module: nn.Module, inputs: object, output: object) -> None:
        nonlocal outputs
        outputs += output.nbytes if isinstance(output, Tensor) else 0

    leaves = [module for module in model.modules() if not list(module.children())]
    hooks = [leaf.register_forward_hook(count) for leaf in leaves]
    training, threads = model.training, torch.get_num_threads()
    torch.set_num_threads(1)  # of more, processes that are forked later would inherit the locks
    try:
        with torch.no_grad():
            model.eval()(images)
    finally:
        torch.set_num_threads(threads)
        model.train(training)
        for hook in hooks:
            hook.remove()
    return (
        5 * num_bytes(model.state_dict())
        + 2 * outputs * load.batch_size // len(images)
        + 50 * 2**20
    )


def conducting_bytes(model: nn.Module) -> int:
    """An estimate for the process that workers train for: eight times the model (what is
    sent, what is scored, a sum in float64, new weights, replies that wait)."""
    return 8 * num_bytes(model.state_dict())


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def _obstacle(devices: list[torch.device]) -> str | None:
    if not can_fork():
        return NO_FORK
    if multiprocessing.current_process().daemon:
        return "this process is a daemon of multiprocessing, which may have no children"
    if devices[0].type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA is already in use in this process, and forked workers could not use it"
    return None
