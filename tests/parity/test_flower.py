"""Flower = embedded, bit for bit: in process for every method, on Ray and on SuperNodes for two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcfl.methods import METHODS, Method
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from tests.engines.runs import COMPRESSIONS, Flat, bits, federation, trained
from tests.flower.in_process import in_process
from tests.toys import PERSONAL

BYTES = {"bytes_up", "bytes_down"}  # on the wire tensors have names and shapes too


def without_bytes(run: Run) -> dict[str, Any]:
    said = bits(run)
    for rows in (said["rounds"], said["clients"]):
        for row in rows:
            for key in BYTES:
                row.pop(key)
    return said


@pytest.fixture
def same(tmp_path: Path) -> Callable[..., None]:
    def look(method: Method, nodes: int = 3, **settings: Any) -> None:
        alone = without_bytes(trained(tmp_path / "alone", method, 1, **settings))
        assert all(row["ok"] == row["sampled"] for row in alone["rounds"])
        connect = in_process(nodes)
        there = trained(tmp_path / "flower", method, 1, connect=connect, **settings)
        assert without_bytes(there) == alone

    return look


@pytest.mark.parametrize("method", sorted(METHODS.keys() - PERSONAL))
def test_every_method_has_the_bits_of_the_embedded_engine(
    method: str, same: Callable[..., None]
) -> None:
    same(METHODS[method](), dataset=federation((3, 10, 5, 8)))


@pytest.mark.parametrize("method", ["scaffold", "moon", "dcfl-pw"])
@pytest.mark.parametrize("nodes", [1, 4, 6])
def test_so_do_samples_of_the_clients_on_any_number_of_nodes(
    method: str, nodes: int, same: Callable[..., None]
) -> None:
    same(METHODS[method](), nodes, participation=0.5, rounds=5, model=Flat())


@pytest.mark.parametrize(
    "server",
    [ServerSettings("fednova"), ServerSettings("samples", OPTIMIZERS["fedacg"]())],
    ids=lambda server: server.aggregation,
)
def test_so_do_aggregations_and_server_optimisers(
    server: ServerSettings, same: Callable[..., None]
) -> None:
    same(METHODS["fedavg"](), server=server, model=Flat())


@pytest.mark.parametrize("method", ["dcfl-pw", "scaffold", "fedexp"])
def test_so_do_sums_of_masked_replies(method: str, same: Callable[..., None]) -> None:
    same(METHODS[method](), server=ServerSettings(secure=True), model=Flat())


@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_so_do_compressed_messages(kind: str, same: Callable[..., None]) -> None:
    """With a method that uploads and remembers too, in half of the rounds."""
    settings = {"participation": 0.5, "rounds": 5, "model": Flat()}
    same(METHODS["scaffold"](), 4, compression=COMPRESSIONS[kind], **settings)


def test_a_model_that_is_seldom_scored(same: Callable[..., None]) -> None:
    same(METHODS["moon"](), rounds=5, evaluate_every=2, model=Flat())
