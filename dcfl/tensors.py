"""Arithmetic over named tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.system.transfers import read_numbers, to_host

RESERVED = "__metadata__"  # of safetensors, which would write a file that it cannot read


def snapshot(model: nn.Module, names: Collection[str] | None = None) -> dict[str, Tensor]:
    """Copy the model's parameters and buffers, so that later training does not change them: all of
    them, or those of these names."""
    return {
        name: tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if names is None or name in names
    }


@torch.no_grad()
def load(model: nn.Module, weights: Tensors, optional: Collection[str] = ()) -> None:
    """Copy a state dict of the same model in; what is `optional` may be missing and then stays. For
    a model of a few layers, `load_state_dict` takes a fifth of a training step; a module with a
    state of its own making needs it."""
    state = model.state_dict(keep_vars=True)
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    if not all(id(live) in own for live in state.values()):
        model.load_state_dict({**{name: state[name] for name in optional}, **weights})
        return
    for name, live in state.items():
        if name in weights or name not in optional:
            live.copy_(weights[name])


def copies(tensors: Tensors) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def canonical(tensors: Tensors) -> dict[str, Tensor]:
    """Bring tensors into the memory layout that all processes and files share: channels last for
    images and kernels, row-major otherwise. The layout decides the last bits of sums."""
    if RESERVED in tensors:
        raise ConfigError(f'a method cannot call a tensor "{RESERVED}": files of tensors use it')
    return {
        name: tensor.detach().contiguous(
            memory_format=torch.channels_last if tensor.dim() == 4 else torch.contiguous_format
        )
        for name, tensor in tensors.items()
    }


ALIGNMENT = 64  # bytes, as torch allocates; some kernels round differently on unaligned memory


def as_rows(tensors: Tensors) -> dict[str, Tensor]:
    """Convert to the form used in files and messages: row-major, with the channels of images and
    kernels as the last axis. Copies to the CPU, because safetensors rejects shared memory."""
    return {
        name: (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).clone(
            memory_format=torch.contiguous_format
        )
        for name, tensor in to_host(canonical(tensors)).items()
    }


def from_rows(stored: Tensors) -> dict[str, Tensor]:
    """Undo `as_rows`; the result has the canonical layout.

    Unaligned tensors are copied, the others share memory with `stored`.
    """
    tensors = {}
    for name, rows in stored.items():
        tensor = rows.clone() if rows.data_ptr() % ALIGNMENT else rows
        tensors[name] = tensor.permute(0, 3, 1, 2) if tensor.dim() == 4 else tensor
    return tensors


def apart_from(model: nn.Module, tensors: Tensors) -> dict[str, Tensor]:
    """Copy the tensors that share memory with the model, which later training would change."""
    if not tensors:
        return {}
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
    """Split into the tensors in `names` and the rest."""
    chosen = {name: tensor for name, tensor in tensors.items() if name in names}
    others = {name: tensor for name, tensor in tensors.items() if name not in names}
    return chosen, others


def together(**parts: Tensors) -> Tensors:
    """Merge several dicts of tensors into one; `apart` splits it again."""
    return {
        f"{part}/{name}": tensor
        for part, tensors in parts.items()
        for name, tensor in tensors.items()
    }


def apart(tensors: Tensors, *parts: str) -> list[dict[str, Tensor]]:
    """Undo `together`."""
    by_part: dict[str, dict[str, Tensor]] = {part: {} for part in parts}
    for full_name, tensor in tensors.items():
        part, _, name = full_name.partition("/")
        by_part[part][name] = tensor
    return list(by_part.values())


def cast_like(tensors: Tensors, reference: Tensors) -> dict[str, Tensor]:
    """Convert each tensor to the dtype and memory layout of its namesake in `reference`."""
    return {name: torch.empty_like(reference[name]).copy_(tensors[name]) for name in tensors}


def clip_share(tensors: Iterable[Tensor], longest: float) -> Tensor:
    """The factor that clips the tensors, taken as one vector, to this L2 norm; 1 if they are short
    enough. A scalar on their device: reading it would stall a GPU."""
    squares = (tensor.double().square().sum() for tensor in tensors)
    norm = sum(squares, start=torch.zeros((), dtype=torch.float64)).sqrt()
    return torch.where(norm <= longest, 1.0, longest / norm)


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
    """Checksum of a file: covers names, order, dtypes, shapes, bytes and a text."""
    shapes = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()]
    return hashlib.sha256(f"{json.dumps(shapes)} {sha256(tensors)} {text}".encode()).hexdigest()


def totals(tensors: Tensors) -> dict[str, float]:
    """The sum of each tensor; they are on one device, which is waited for once."""
    sums = read_numbers([tensor.sum() for tensor in tensors.values()])
    return dict(zip(tensors, sums, strict=True))


def not_finite(tensors: Tensors, sums: Mapping[str, float] | None = None) -> str | None:
    """The name of the first tensor that contains NaN or infinity, or None. `sums` are their
    `totals`, if known."""
    for name, total in (totals(tensors) if sums is None else sums).items():
        # The sum is a quick test: NaN or infinity spoils it. It may also overflow, so check again.
        if not isfinite(total) and not tensors[name].isfinite().all():
            return name
    return None


class RunningMean:
    """A weighted mean of named tensors, computed in the memory of one float64 model.

    Integer tensors have no mean: those added first are used. The order of `add` decides the last
    bits, so callers add in client order.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._integers: dict[str, Tensor] = {}
        self._weight = 0.0

    def add(self, tensors: Tensors, weight: float) -> None:
        for name, tensor in tensors.items():
            if not tensor.is_floating_point():
                self._integers.setdefault(name, tensor.clone())
            elif name in self._sums:
                self._sums[name].add_(tensor, alpha=weight)
            else:
                self._sums[name] = tensor.to(torch.float64, copy=True).mul_(weight)
        self._weight += weight

    def mean(self) -> dict[str, Tensor]:
        """The mean in float64; integers keep their dtype. Hands its sums over: `add` nothing
        more."""
        sums, self._sums = self._sums, {}
        means = {name: total.div_(self._weight) for name, total in sums.items()}
        return {**means, **self._integers}
