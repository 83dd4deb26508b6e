"""Shared memory: tensors that several processes see without sending them.

A region has no name in any file system: only processes forked after it was made can reach it, and
the kernel frees it when the last of them ends, however it ends.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from itertools import chain
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl.messages import Tensors
from dcfl.system.transfers import copy_to_host
from dcfl.tensors import ALIGNMENT

# Replies that wait for their turn: so much memory, but two per worker in any case, and no more than
# 32, because each holds up to four file descriptors.
SLOTS_BYTES, MAX_SLOTS = 64 * 2**20, 32


class Region:
    """Memory that grows with what is put into it: a description of the tensors, then the tensors.

    The description is here and not in a message, because a message must not fill a pipe: the other
    process might be busy filling the pipe back.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("dcfl")
        else:
            with tempfile.TemporaryFile() as file:  # macOS
                self._file = os.dup(file.fileno())
        self._memory = mmap.mmap(-1, 1)  # replaced by the first use
        self._bytes = torch.empty(0, dtype=torch.uint8)  # the same, as a tensor
        self._last_put: tuple[list[object], bytes, dict[str, Tensor]] = ([None], b"", {})
        self._last_got: tuple[bytes, dict[str, Tensor]] = (b"", {})

    def put(self, tensors: Tensors) -> int:
        """Copy the tensors in, over what was there; returns the length that `get` needs."""
        signature: list[object] = [(n, t.dtype, t.shape) for n, t in tensors.items()]
        if signature != self._last_put[0]:  # mostly the same as last time
            kinds = [(n, f"{t.dtype}"[len("torch.") :], [*t.shape]) for n, t in tensors.items()]
            description = json.dumps(kinds).encode()
            self._last_put = signature, description, self._views(description)
        _, description, views = self._last_put
        self._memory[: len(description)] = description
        copy_to_host([*tensors.values()], [*views.values()])
        return len(description)

    def get(self, length: int) -> dict[str, Tensor]:
        """The tensors themselves, not copies: they change with the next `put`."""
        if length > len(self._bytes):
            self._map(length)
        description = self._memory[:length]
        if description != self._last_got[0]:
            self._last_got = description, self._views(description)
        return dict(self._last_got[1])

    def close(self) -> None:
        """Tensors that `get` returned stay valid."""
        os.close(self._file)

    def _views(self, description: bytes) -> dict[str, Tensor]:
        """The described tensors, in the canonical layout: channels of images and kernels last."""
        places, end = [], _aligned(len(description))
        for name, kind, shape in json.loads(description):
            dtype = getattr(torch, kind)
            size = prod(shape) * dtype.itemsize
            places.append((name, dtype, shape, end, size))
            end += _aligned(size)
        if end > len(self._bytes):
            self._map(end)
        views = {}
        for name, dtype, shape, start, size in places:
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


class ReplySlot(NamedTuple):
    """The shared memory for one client's turn."""

    memory: Region  # to the worker: the client's memory
    reply: Region  # from it: weights, upload and the client's new memory


class SharedRegions:
    """All shared memory of a pool; made before its workers are forked."""

    def __init__(self, slots: int) -> None:
        self.broadcast = Region()  # weights, and what the method shares
        self.evaluated = Region()  # the weights to evaluate
        self.slots = [ReplySlot(Region(), Region()) for _ in range(slots)]

    def close(self) -> None:
        for region in (self.broadcast, self.evaluated, *chain(*self.slots)):
            region.close()


def slot_count(update_bytes: int, workers: int) -> int:
    return max(2 * workers, min(SLOTS_BYTES // max(update_bytes, 1), MAX_SLOTS))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
