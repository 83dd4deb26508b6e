"""Tensors on their way to the device that trains, and back.

A GPU works behind the process that feeds it, as long as that process does not wait. Whatever a
client does, it waits in `_on_host` alone, once for each of a few places
(tests/engines/test_gpu_paths.py lists them), and never in a training step. Copies go through pinned
memory, because a copy from or to other memory makes the process wait too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dcfl.messages import Tensors


def to_device(tensors: Tensors, device: torch.device) -> dict[str, Tensor]:
    """On the device; those that are there already are not copied."""
    return {name: on_device(tensor, device) for name, tensor in tensors.items()}


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = _pinned(tensor)
    return tensor.to(device, non_blocking=True)


def settled(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device for good, such as a data set. Waits: torch would keep a pinned copy of it for
    as long as the process lives."""
    return tensor.to(device)


def to_host(tensors: Tensors) -> dict[str, Tensor]:
    """In ordinary memory, after one wait; those that are there already are not copied."""
    elsewhere = {name: tensor for name, tensor in tensors.items() if tensor.device.type != "cpu"}
    # Pinned memory is for passing through: what is kept should not stay in it.
    arrived = {
        name: tensor.clone()
        for name, tensor in zip(elsewhere, _on_host([*elsewhere.values()]), strict=True)
    }
    return {name: arrived.get(name, tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def copy_to_host(tensors: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy each tensor into its target, after one wait."""
    for target, tensor in zip(targets, _on_host(tensors), strict=True):
        target.copy_(tensor)


@torch.no_grad()
def read_numbers(tensors: Sequence[Tensor]) -> list[float]:
    """All numbers of all tensors, which are on one device or on the CPU, after one wait."""
    if not tensors:
        return []
    elsewhere = (tensor.device for tensor in tensors if tensor.device.type != "cpu")
    device = next(elsewhere, torch.device("cpu"))
    flat = torch.cat([on_device(tensor.double().reshape(-1), device) for tensor in tensors])
    numbers: list[float] = _on_host([flat])[0].tolist()
    return numbers


def _on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those on the CPU themselves, of the others copies, in pinned memory if they were on a GPU."""
    copies = []
    for tensor in tensors:
        if tensor.device.type == "cuda":
            copies.append(_pinned_like(tensor).copy_(tensor, non_blocking=True))
        else:
            copies.append(tensor.cpu())
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return copies


# torch keeps freed pinned memory for later copies, and hands out none that a copy still uses.


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory()


def _pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=True)
