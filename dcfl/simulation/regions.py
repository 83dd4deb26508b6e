"""Tensors that several processes see without sending them.

A region has no name in any file system: it is reached by processes forked after it was made, and
the kernel frees it when the last of them ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor

from dcfl.messages import Tensors

# Where each tensor lies, in plain values that can be sent: its type, shape and offset.
Places: TypeAlias = Mapping[str, tuple[str, list[int], int]]

ALIGNMENT = 64  # as torch's own memory; some kernels round differently elsewhere


class Region:
    """Memory that grows with what is put into it."""

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._put: tuple[list[object], Places, list[Tensor]] = ([], {}, [])
        self._got: tuple[Places, dict[str, Tensor]] = ({}, {})

    def put(self, tensors: Tensors) -> Places:
        """Copy the tensors in, over whatever was there; returns where they lie."""
        signature: list[object] = [(n, t.dtype, t.shape) for n, t in tensors.items()]
        if signature != self._put[0]:  # mostly it is what it was last time
            places, size = _places(tensors)
            if size > os.fstat(self._file).st_size:  # another process may have made it larger
                os.ftruncate(self._file, size)
            self._put = signature, places, list(self._views(places, size).values())
        _, places, views = self._put
        with torch.no_grad():
            for view, tensor in zip(views, tensors.values(), strict=True):
                view.copy_(tensor)
        return places

    def get(self, places: Places) -> dict[str, Tensor]:
        """The tensors themselves, not copies: they change with the next `put`."""
        if places != self._got[0]:
            end = max((_end(place) for place in places.values()), default=0)
            self._got = places, self._views(places, end)
        return dict(self._got[1])

    def close(self) -> None:
        """Tensors that were got stay valid."""
        os.close(self._file)

    def _views(self, places: Places, size: int) -> dict[str, Tensor]:
        if size > len(self._bytes):
            whole = mmap.mmap(self._file, os.fstat(self._file).st_size)
            self._bytes = torch.frombuffer(whole, dtype=torch.uint8)
        return {name: _view(self._bytes, place) for name, place in places.items()}


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("dcfl")
    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


def _places(tensors: Tensors) -> tuple[Places, int]:
    places: dict[str, tuple[str, list[int], int]] = {}
    offset = 0
    for name, tensor in tensors.items():
        places[name] = str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return places, offset


def _end(place: tuple[str, list[int], int]) -> int:
    dtype, shape, offset = place
    return int(offset + prod(shape) * getattr(torch, dtype).itemsize)


def _view(memory: Tensor, place: tuple[str, list[int], int]) -> Tensor:
    """In the canonical layout: the channels of images and kernels are the last axis in memory."""
    dtype, shape, offset = place
    flat = memory[offset : _end(place)].view(getattr(torch, dtype))
    if len(shape) == 4:
        return flat.view(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
    return flat.view(shape)
