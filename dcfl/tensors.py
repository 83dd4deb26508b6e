"""Arithmetic over named tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from math import isfinite, sqrt

import torch
from torch import Tensor, nn

from dcfl.messages import Tensors


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the model's parameters and buffers, which later training does not touch."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def canonical(tensors: Tensors) -> dict[str, Tensor]:
    """In the one memory layout that every process and file agrees on: channels last for images and
    kernels, row by row for all else. Sums over a tensor depend on it in their last bits."""
    return {
        name: tensor.detach().contiguous(
            memory_format=torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
        )
        for name, tensor in tensors.items()
    }


ALIGNMENT = 64  # of torch's own memory; some kernels round differently elsewhere


def as_rows(tensors: Tensors) -> dict[str, Tensor]:
    """As files and messages have them: row by row, so the channels of images and kernels become the
    last axis. Copies on the CPU, because safetensors takes no tensors that share memory."""
    return {
        name: (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor)
        .cpu()
        .clone(memory_format=torch.contiguous_format)
        for name, tensor in canonical(tensors).items()
    }


def from_rows(stored: Tensors) -> dict[str, Tensor]:
    """What `as_rows` was given, in the canonical layout.

    What does not lie where torch would have put it is copied, the rest is used where it is.
    """
    tensors = {}
    for name, rows in stored.items():
        tensor = rows.clone() if rows.data_ptr() % ALIGNMENT else rows
        tensors[name] = tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor
    return tensors


def apart_from(model: nn.Module, tensors: Tensors) -> dict[str, Tensor]:
    """Copies of those tensors that are the model's own, which later training would change."""
    live = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    return {
        name: tensor.clone() if tensor.untyped_storage().data_ptr() in live else tensor
        for name, tensor in tensors.items()
    }


def add(a: Tensors, b: Tensors) -> dict[str, Tensor]:
    return {name: a[name] + b[name] for name in a}


def subtract(a: Tensors, b: Tensors) -> dict[str, Tensor]:
    return {name: a[name] - b[name] for name in a}


def zeros_like(tensors: Tensors) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def split(tensors: Tensors, names: Collection[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors in `names`, and the others."""
    chosen = {name: tensor for name, tensor in tensors.items() if name in names}
    others = {name: tensor for name, tensor in tensors.items() if name not in names}
    return chosen, others


def together(**parts: Tensors) -> Tensors:
    """Several dicts of tensors as one."""
    return {f"{part}/{name}": tensor for part, own in parts.items() for name, tensor in own.items()}


def apart(tensors: Tensors, *parts: str) -> list[dict[str, Tensor]]:
    """What `together` was given."""
    found: dict[str, dict[str, Tensor]] = {part: {} for part in parts}
    for full, tensor in tensors.items():
        part, _, name = full.partition("/")
        found[part][name] = tensor
    return list(found.values())


def cast_like(tensors: Tensors, reference: Tensors) -> dict[str, Tensor]:
    """Each tensor in the dtype and memory layout of its namesake in `reference`."""
    return {name: torch.empty_like(reference[name]).copy_(tensors[name]) for name in tensors}


def clip_share(tensors: Iterable[Tensor], longest: float) -> float:
    """The factor that scales the tensors, taken as one vector, down to this L2 norm; 1 if they are
    short enough."""
    norm = sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
    return 1.0 if norm <= longest else longest / norm


def sha256(tensors: Tensors) -> str:
    """SHA-256 over the names and bytes, sorted by name: equal if and only if every bit is."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        data = tensors[name].detach().cpu().contiguous().reshape(-1)
        data = data.clone() if data.numel() == 1 else data  # a single number may have any stride
        digest.update(data.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(tensors: Tensors, text: str = "") -> str:
    """Of names, order, dtypes, shapes, bytes and a text: for what is written to be read again."""
    shapes = [[name, str(each.dtype), list(each.shape)] for name, each in tensors.items()]
    return hashlib.sha256(f"{json.dumps(shapes)} {sha256(tensors)} {text}".encode()).hexdigest()


def not_finite(tensors: Tensors) -> str | None:
    """The name of a tensor with NaN or infinity in it, if there is one."""
    for name, tensor in tensors.items():
        # A sum with NaN or infinity in it is not finite. The converse does not hold, so look again.
        if not isfinite(float(tensor.sum())) and not tensor.isfinite().all():
            return name
    return None


class RunningMean:
    """A weighted mean of named tensors, folded one by one: the memory of one model in float64.

    Integer tensors have no mean: the first one's are kept. The order of `add` decides the last
    bits, so callers fold in client order.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._kept: dict[str, Tensor] = {}
        self._weight = 0.0

    def add(self, tensors: Tensors, weight: float) -> None:
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                self._kept.setdefault(name, tensor.clone())
            elif name in self._sums:
                self._sums[name].add_(tensor, alpha=weight)
            else:
                self._sums[name] = tensor.to(torch.float64, copy=True).mul_(weight)
        self._weight += weight

    def mean(self) -> dict[str, Tensor]:
        """The mean so far, float64 (integers as they came). Nothing may be added afterwards."""
        means = {name: total.div_(self._weight) for name, total in self._sums.items()}
        return {**means, **self._kept}
