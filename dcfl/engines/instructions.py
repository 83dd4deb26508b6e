"""Instructions that a CPU advertises and cannot run.

Some virtual machines advertise AMX but hide the description of its tiles. oneDNN then uses AMX, and
the process dies of an illegal instruction at its first matrix product in half precision. On such
machines oneDNN is told not to use AMX; float32 never needs it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch

from dcfl.system.processes import answer_of_a_fork

LIMIT = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads it once, before its first operation
WITHOUT_AMX = "AVX512_CORE_FP16"


@cache
def avoid_broken_instructions() -> None:
    """Works only before torch's first convolution or matrix product in this process; harmless
    afterwards."""
    if LIMIT not in os.environ and _advertises_amx() and not half_precision_works():
        os.environ[LIMIT] = WITHOUT_AMX


def half_precision_works() -> bool:
    """Try a product of bfloat16 matrices in a process that may die of it."""
    return not hasattr(os, "fork") or answer_of_a_fork(_product) == 64


def _product() -> float:
    torch.set_num_threads(1)
    matrix = torch.ones(64, 64, dtype=torch.bfloat16)
    return float((matrix @ matrix)[0, 0])


def _advertises_amx() -> bool:
    try:
        return " amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
