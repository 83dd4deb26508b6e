"""Half precision on this CPU: which instructions work, and whether it has units for bfloat16."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch

from dcfl.system.processes import answer_of_a_fork

LIMIT = "ONEDNN_MAX_CPU_ISA"  # oneDNN reads it once, before its first operation
WITHOUT_AMX = "AVX512_CORE_FP16"


@cache
def avoid_broken_instructions() -> None:
    """Keep torch from instructions that this CPU advertises and dies of. This works only before the
    first convolution or matrix product of the process, and is harmless afterwards."""
    if LIMIT not in os.environ and _advertises_amx() and not half_precision_works():
        os.environ[LIMIT] = WITHOUT_AMX


def half_precision_works() -> bool:
    """Try a product of bfloat16 matrices in a process that may die of it."""

    def product() -> float:
        torch.set_num_threads(1)
        matrix = torch.ones(64, 64, dtype=torch.bfloat16)
        return float((matrix @ matrix)[0, 0])

    return not hasattr(os, "fork") or answer_of_a_fork(product) == 64


def _advertises_amx() -> bool:
    try:
        return " amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


# The units that multiply bfloat16, by torch's name for them. Without them a CPU converts every
# number, which takes many times as long as float32.
UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16"}


def bfloat16_units(capabilities: Mapping[str, object] | None = None) -> str:
    """The name of this CPU's units for bfloat16; empty if it has none."""
    if capabilities is None:
        ask: Callable[[], Mapping[str, object]] | None = getattr(
            torch.cpu, "get_capabilities", None
        )
        capabilities = ask() if ask else {}
    return next((unit for key, unit in UNITS.items() if capabilities.get(key) is True), "")
