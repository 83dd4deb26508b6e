"""A GPU that is not there, as strict as a real one is slow.

Tensors on it compute on the CPU, so their numbers can be compared; but they say that they are on
another device, and what would make a process wait for a GPU, or would not work on one, raises:
reading a number, sizes that depend on values, tensors of two devices in one operation. Copies
between the devices raise too, unless `dcfl.system.transfers` makes them.

torch wants to know such a device before its first backward pass, never forgets it, and does not
survive a fork afterwards: tests use it in a process of its own, `process_with_gpu`.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import dcfl.tensors
from dcfl.system import transfers

NAME = "simulated"
READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"}
SIZED_BY_VALUES = {"nonzero", "masked_select", "bincount", "unique", "_unique2", "unique_dim"}


# Under autocast nothing is converted: what matters here is how losses are scaled.
EVERYTHING = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]


class Refused(Exception):
    """A GPU would stall here, or not work at all."""


@dataclass
class Record:
    """The functions that waited for the device, and those that sent something there."""

    waits: list[str] = field(default_factory=list)
    sends: list[str] = field(default_factory=list)
    waiting: bool = False  # just now


class OnGPU(Tensor):
    """A tensor on the simulated GPU; `numbers` is where it computes."""

    numbers: Tensor
    record: Record
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor, record: Record) -> OnGPU:
        wrapper: OnGPU = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        wrapper.numbers, wrapper.record = inner, record
        return wrapper

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.numbers.untyped_storage()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        record = next(leaf.record for leaf in tree_leaves(args) if isinstance(leaf, OnGPU))
        return _computed(operation, args, kwargs or {}, record)


class _Creations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tensors made on the device, or sent there."""

    def __init__(self, record: Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._record = record

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(operation, args, kwargs or {}, self._record)


def _computed(operation: Any, args: Any, kwargs: dict[str, Any], record: Record) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, OnGPU)]
    target = kwargs.get("device")
    name = operation._schema.name.removeprefix("aten::")
    stays = bool(on_gpu) if target is None else torch.device(target).type == NAME
    if name in ("_to_copy", "copy_"):
        _check_copy(name, args, stays, record)
    elif on_gpu:
        _check(name, args, tensors)
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    made = operation(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if name == "copy_":
        return args[0]
    known = {
        id(tensor.numbers): tensor for tensor in on_gpu
    }  # an operation in place returns itself

    def outer(value: Any) -> Any:
        if not stays or not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else OnGPU(value, record)

    return tree_map(outer, made)


def _inner(value: Any) -> Any:
    return value.numbers if isinstance(value, OnGPU) else value


def _check(name: str, args: Any, tensors: list[Tensor]) -> None:
    if name in READS:
        raise Refused(f"{name} reads a number")
    if name in SIZED_BY_VALUES:
        raise Refused(f"the size of {name} depends on values")
    if name in ("index", "index_put", "index_put_"):
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            raise Refused(f"the size of {name} by a mask depends on values")
    # A number on the CPU may be combined with tensors on a GPU, other tensors may not.
    if any(tensor.dim() and not isinstance(tensor, OnGPU) for tensor in tensors):
        raise Refused(f"{name} of tensors on two devices")


def _check_copy(name: str, args: Any, stays: bool, record: Record) -> None:
    source = args[1] if name == "copy_" else args[0]
    there = isinstance(args[0], OnGPU) if name == "copy_" else stays
    if isinstance(source, OnGPU) and not there and not record.waiting:
        raise Refused("a copy to the CPU that dcfl.system.transfers does not make")
    if there and not isinstance(source, OnGPU):
        record.sends.append(caller("on_device"))


def caller(door: str) -> str:
    """Who called the transfers, whose function `door` has been called."""
    helpers = (transfers.__file__, dcfl.tensors.__file__)
    frame: FrameType | None = sys._getframe()
    inside = False
    while frame is not None:
        code = frame.f_code
        inside |= code.co_name == door and code.co_filename not in helpers[1:]
        ours = "/dcfl/" in code.co_filename and code.co_filename not in helpers
        if ours and (inside or code.co_qualname == "ClientRunner.on"):  # which moves the model
            return code.co_qualname
        frame = frame.f_back
    raise Refused("a copy to the GPU that dcfl.system.transfers does not make")


@contextmanager
def _waits_recorded(record: Record) -> Iterator[None]:
    original = transfers._on_host

    def recorded(tensors: Sequence[Tensor]) -> list[Tensor]:
        if any(isinstance(tensor, OnGPU) for tensor in tensors):
            record.waits.append(caller("recorded"))
        record.waiting = True
        try:
            return original(tensors)
        finally:
            record.waiting = False

    transfers._on_host = recorded
    try:
        yield
    finally:
        transfers._on_host = original


class _Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


@contextmanager
def simulated_gpu() -> Iterator[tuple[torch.device, Record]]:
    record = Record()
    with _waits_recorded(record), _Creations(record):
        yield torch.device(NAME, 0), record


@contextmanager
def process_with_gpu() -> Iterator[Callable[..., Any]]:
    """Calls functions, which must be picklable, in a process where `simulated_gpu` works."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_install) as executor:
        yield lambda function, *args, **kwargs: executor.submit(function, *args, **kwargs).result()


def _install() -> None:
    torch.set_num_threads(1)
    # Python's own kinds of tensors cannot be made in inference mode; the numbers are the same.
    torch.inference_mode = torch.no_grad  # type: ignore[assignment, misc]
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    fallthrough = torch.library.fallthrough_kernel
    EVERYTHING.fallback(fallthrough, "AutocastPrivateUse1")  # type: ignore[no-untyped-call]
