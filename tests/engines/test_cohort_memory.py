"""A method's uploads in a whole run: a larger cohort needs no more memory for them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from dcfl.engines import regions
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.server import Server
from tests.engines.runs import Flat, federation, trained

FEW, MANY = 6, 24  # clients in a round; more than there are slots
SPARE = 3  # memories that are just being written, and the like
KERNEL = 64 * 4  # numbers of Flat's weight, which SCAFFOLD uploads a variate of


def peak(monkeypatch: pytest.MonkeyPatch, folder: Path, workers: int, clients: int) -> int:
    """Tensors as large as an upload, when the last reply of the last round arrives."""
    admit, seen = Server._admit, [0]

    def counted(self: Server, reply: Any, broadcast: Broadcast, *more: Any) -> Any:
        if reply.client == clients - 1 and broadcast.round == 2:
            gc.collect()
            tensors = (o for o in gc.get_objects() if issubclass(type(o), Tensor))
            seen[0] = sum(tensor.numel() == KERNEL for tensor in tensors)
        return admit(self, reply, broadcast, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "_admit", counted)
        patch.setattr(regions, "SLOTS_BYTES", 0)
        dataset = federation((4,) * clients)
        settings = {"dataset": dataset, "model": Flat(), "rounds": 2, "memory_budget": 0}
        trained(folder, METHODS["scaffold"](), workers, **settings)
    return seen[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_uploads_that_are_folded_do_not_gather(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (peak(monkeypatch, tmp_path / str(n), workers, n) for n in (FEW, MANY))
    assert 0 < many <= few + SPARE
