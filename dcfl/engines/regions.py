"""Tensors that several processes see without sending them.

A region has no name in any file system: it is reached by processes forked after it was made, and
the kernel frees it when the last of them ends, however it ends.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from math import prod

import torch
from torch import Tensor

from dcfl.messages import Tensors
from dcfl.tensors import ALIGNMENT


class Region:
    """Memory that grows with what is put into it: a description of the tensors, then the tensors.

    The description lies here and not in a message, because a message must not fill a pipe whose
    other end may be busy filling the one back.
    """

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._memory = mmap.mmap(-1, 1)  # replaced by the first use
        self._bytes = torch.empty(0, dtype=torch.uint8)  # the same, as a tensor
        self._put: tuple[list[object], bytes, dict[str, Tensor]] = ([None], b"", {})
        self._got: tuple[bytes, dict[str, Tensor]] = (b"", {})

    def put(self, tensors: Tensors) -> int:
        """Copy the tensors in, over whatever was there; returns what `get` asks for."""
        signature: list[object] = [(n, t.dtype, t.shape) for n, t in tensors.items()]
        if signature != self._put[0]:  # mostly it is what it was last time
            description = json.dumps([_described(*item) for item in tensors.items()]).encode()
            self._put = signature, description, self._views(description)
        _, description, views = self._put
        self._memory[: len(description)] = description
        with torch.no_grad():
            for view, tensor in zip(views.values(), tensors.values(), strict=True):
                view.copy_(tensor)
        return len(description)

    def get(self, length: int) -> dict[str, Tensor]:
        """The tensors themselves, not copies: they change with the next `put`."""
        if length > len(self._bytes):
            self._map(length)
        description = self._memory[:length]
        if description != self._got[0]:
            self._got = description, self._views(description)
        return dict(self._got[1])

    def close(self) -> None:
        """Tensors that were got stay valid."""
        os.close(self._file)

    def _views(self, description: bytes) -> dict[str, Tensor]:
        """In the canonical layout: the channels of images and kernels are the last axis."""
        kinds = [
            (name, getattr(torch, dtype), shape) for name, dtype, shape in json.loads(description)
        ]
        sizes = [prod(shape) * dtype.itemsize for _, dtype, shape in kinds]
        starts = [_aligned(len(description))]
        for size in sizes:
            starts.append(starts[-1] + _aligned(size))
        if starts[-1] > len(self._bytes):
            self._map(starts[-1])
        views = {}
        for (name, dtype, shape), start, size in zip(kinds, starts, sizes, strict=False):
            flat = self._bytes[start : start + size].view(dtype)
            if len(shape) == 4:
                images, channels, height, width = shape
                views[name] = flat.view(images, height, width, channels).permute(0, 3, 1, 2)
            else:
                views[name] = flat.view(shape)
        return views

    def _map(self, size: int) -> None:
        if size > os.fstat(self._file).st_size:  # another process may have made it larger
            os.ftruncate(self._file, size)
        self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dcfl")
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


def _described(name: str, tensor: Tensor) -> tuple[str, str, list[int]]:
    return name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
