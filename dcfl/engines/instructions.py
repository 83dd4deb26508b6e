"""Instructions that a CPU advertises and cannot run.

Some virtual machines advertise AMX but hide the description of its tiles. oneDNN then uses AMX, and
the process dies of an illegal instruction at its first matrix product in half precision. On such
machines oneDNN is told not to use AMX; float32 never needs it.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from functools import cache
from pathlib import Path

import torch

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
    if not hasattr(os, "fork"):
        return True
    exits: list[int] = []
    # From a thread of its own: OpenMP's record of the threads it leads does not survive a fork.
    thread = threading.Thread(target=lambda: exits.append(_exit_of_a_product()))
    thread.start()
    thread.join()
    return exits == [0]


def _exit_of_a_product() -> int:
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # if it dies, that is the answer and no news
        torch.set_num_threads(1)
        matrix = torch.ones(64, 64, dtype=torch.bfloat16)
        os._exit(0 if float((matrix @ matrix)[0, 0]) == 64 else 1)
    _, status = os.waitpid(child, 0)
    return status


def _advertises_amx() -> bool:
    try:
        return " amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
