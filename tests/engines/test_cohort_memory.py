"""A method's uploads in a whole run: a larger cohort needs no more memory for them."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dcfl.client import Client
from dcfl.engines import regions
from dcfl.messages import Broadcast, Tensors
from dcfl.methods import METHODS, Method, Objective
from dcfl.methods.method import MeanUpload
from dcfl.server import Server
from tests.engines.runs import Flat, federation, trained

FEW, MANY = 6, 24  # clients in a round; more than there are slots
SPARE = 3  # memories that are just being written, and the like
HEAVY, KERNEL = 5003, 64 * 4  # numbers: of an upload of its own, of Flat's weight


@dataclass(frozen=True)
class Folded(Method):
    def objective(self, client: Client) -> Objective:
        usual, heard = super().objective(client), client.shared.get("heavy", torch.zeros(1))
        return lambda batch: usual(batch) * (1 + heard.mean())

    def upload(self, client: Client) -> Tensors:
        return {"heavy": torch.full((HEAVY,), 1 + client.id / 7)}

    def merge_mean(self, shared: Tensors, uploads: MeanUpload, population: int) -> Tensors:
        return uploads.cast(uploads.tensors)


@dataclass(frozen=True)
class Listed(Folded):
    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        return super().merge(shared, uploads, population)


def peak(
    monkeypatch: pytest.MonkeyPatch, folder: Path, method: Method, workers: int, clients: int
) -> int:
    """Tensors as large as its upload, when the last reply of the last round arrives."""
    size = KERNEL if method.name == "scaffold" else HEAVY
    admit, seen = Server._admit, [0]

    def counted(self: Server, reply: Any, broadcast: Broadcast) -> Any:
        if reply.client == clients - 1 and broadcast.round == 2:
            gc.collect()
            tensors = (o for o in gc.get_objects() if issubclass(type(o), Tensor))
            seen[0] = sum(tensor.numel() == size for tensor in tensors)
        return admit(self, reply, broadcast)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "_admit", counted)
        patch.setattr(regions, "SLOTS_BYTES", 0)
        dataset = federation((4,) * clients)
        trained(folder, method, workers, dataset=dataset, model=Flat(), rounds=2, memory_budget=0)
    return seen[0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", [METHODS["scaffold"](), Folded()], ids=lambda m: m.name)
def test_uploads_that_are_folded_do_not_gather(
    method: Method, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (peak(monkeypatch, tmp_path / str(n), method, workers, n) for n in (FEW, MANY))
    assert 0 < many <= few + SPARE


def test_a_list_of_them_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the count above would see."""
    few, many = (peak(monkeypatch, tmp_path / str(n), Listed(), 2, n) for n in (FEW, MANY))
    assert many >= few + MANY - FEW


def test_a_list_and_a_fold_share_the_same(tmp_path: Path) -> None:
    """On any engine: the pool's replies lie in memory that it reuses."""
    model = Flat()
    runs = [
        trained(tmp_path / f"{method.name}-{workers}", method, workers, model=model)
        for method in (Folded(), Listed(), METHODS["fedavg"]())
        for workers in (1, 2)
    ]
    *heard, deaf, _ = (run.result().summary.weights_sha256 for run in runs)
    assert len(set(heard)) == 1
    assert deaf not in heard
