"""What the GPUs of this machine say of themselves.

Unless this process uses CUDA already, they are asked in another one: workers forked from a process
that has started CUDA cannot use it. The other process counts the GPUs as torch does here
(CUDA_VISIBLE_DEVICES and all), unlike nvidia-smi.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from typing import NamedTuple

import torch

from dcfl.system.processes import python

# What CUDA and its libraries take for themselves in every process, roughly.
CUDA_BYTES = 600 * 2**20
SECONDS = 120  # to import torch and start CUDA on a busy machine

QUESTION = """
import json, torch
print(json.dumps([
    (torch.cuda.get_device_name(i), torch.cuda.mem_get_info(i)[0])
    for i in range(torch.cuda.device_count())
]))
"""


class GPU(NamedTuple):
    name: str
    free_bytes: int


def described(device: torch.device) -> GPU | None:
    """None if it cannot be asked."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return GPU(torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[0])
    gpus = _all_gpus()
    return gpus[device.index] if device.index is not None and device.index < len(gpus) else None


@cache
def _all_gpus() -> list[GPU]:
    """In the order of their numbers, as they were when first asked; empty if nobody answers."""
    command = python("-c", QUESTION)
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return [GPU(str(name), int(free)) for name, free in json.loads(answer.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return []
