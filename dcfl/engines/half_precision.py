"""Half precision on this CPU: which instructions work, and what bfloat16 is worth, measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import evaluating
from dcfl.models.output import FeatureModel
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


# The units that multiply bfloat16, by torch's name for them. Without them a CPU converts every
# number, which takes many times as long as float32.
UNITS = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16", "bf16": "BF16"}
SECONDS = 1.0  # to spend on comparing the two, and at least one step of each kind
# A step in float32 may take so long: a ResNet-18's on 64 images takes one or two seconds. Below
# eight images the conversion of the weights would count too much.
STEP_SECONDS, SMALLEST_BATCH = 0.1, 8


def bfloat16_units(capabilities: Mapping[str, object] | None = None) -> str:
    """The name of this CPU's units for bfloat16; empty if it has none."""
    if capabilities is None:
        ask: Callable[[], Mapping[str, object]] | None = getattr(
            torch.cpu, "get_capabilities", None
        )
        capabilities = ask() if ask else {}
    return next((unit for key, unit in UNITS.items() if capabilities.get(key) is True), "")


def bfloat16_share(
    model: FeatureModel, images: Tensor, batch_size: int, threads: int
) -> float | None:
    """What a training step of the model in bfloat16 takes of the time of one in float32, on the
    CPU; None if that could not be measured.

    `images` [n, C, H, W] are repeated to a batch, which is smaller than `batch_size` if the model
    is slow. The steps are taken in a copy of this process, so the model, its memory and the random
    numbers stay as they are.
    """

    def work() -> float:
        torch.set_num_threads(threads)
        rough = min(_step(model, images, None) for _ in range(2)) / len(images)
        size = min(batch_size, max(SMALLEST_BATCH, int(STEP_SECONDS / rough)))
        return _compared(model, torch.cat([images] * -(-size // len(images)))[:size])

    share: float | None = answer_of_a_fork(work) if bfloat16_units() else None
    return share


@torch.no_grad()
def forward_seconds(model: FeatureModel, images: Tensor) -> float:
    """Seconds of a forward pass of an image, in evaluation mode."""
    with evaluating(model):
        model(images)  # the first one prepares kernels
        began = time.perf_counter()
        model(images)
        return (time.perf_counter() - began) / len(images)


def _compared(model: FeatureModel, batch: Tensor) -> float:
    """Time both in turn: whatever disturbs the machine disturbs both."""
    for dtype in (None, torch.bfloat16):
        _step(model, batch, dtype)  # the first one prepares kernels
    plain: list[float] = []
    half: list[float] = []
    end = time.perf_counter() + SECONDS
    while not plain or time.perf_counter() < end:
        plain.append(_step(model, batch, None))
        half.append(_step(model, batch, torch.bfloat16))
    return median(half) / median(plain)


def _step(model: FeatureModel, batch: Tensor, dtype: torch.dtype | None) -> float:
    """Seconds of a forward and a backward pass."""
    model.train()
    labels = torch.zeros(len(batch), dtype=torch.int64)
    began = time.perf_counter()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model(batch).logits
    F.cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None
    return time.perf_counter() - began
