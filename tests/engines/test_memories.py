"""What clients keep: the same in RAM and on disk, and never more RAM than was granted."""

from __future__ import annotations

import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.engines import memories as module
from dcfl.engines.memories import Memories
from dcfl.errors import StorageError
from dcfl.messages import Tensors, num_bytes
from dcfl.methods import METHODS
from dcfl.tensors import canonical, sha256
from tests.engines.runs import made_ready

KB = 1024


def memory(size: int, value: float = 1.0) -> dict[str, torch.Tensor]:
    """So many bytes."""
    return {"m": torch.full((size // 4,), float(value))}


def put(memories: Memories, client: int, kept: Tensors) -> None:
    """As after a round in which the client's reply was used."""
    memories.stage(client, memories.version(client).round + 1, kept)
    memories.settle([client])


def everything() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    floats = torch.randn(2, 3, 4, 5, generator=generator)
    return canonical(
        {
            "kernel": floats,
            "permuted": floats.permute(1, 0, 3, 2),
            "matrix": floats[0, 0].T,
            "half": floats.half(),
            "brain": floats[0].bfloat16(),
            "double": floats.double(),
            "scalar": torch.tensor(3),
            "mask": floats > 0,
            "bytes": torch.arange(7, dtype=torch.uint8),
            "none": torch.empty(0, 3),
            "not a number": torch.tensor([float("nan"), float("inf"), -0.0]),
        }
    )


def settled(memories: Memories) -> None:
    """Everything that is to be written has been: two more writes wait for all before them."""
    for client in (998, 999, 998):
        put(memories, client, memory(10**6))


def test_a_client_that_never_came_has_no_memory(tmp_path: Path) -> None:
    with Memories(tmp_path / "m", budget=0) as memories:
        assert memories[3] == {}
        assert memories.in_ram(3) == {}


@pytest.mark.parametrize("budget", [0, 10**6])
def test_bits_and_layout_are_the_same_in_ram_and_on_disk(tmp_path: Path, budget: int) -> None:
    kept = everything()
    with Memories(tmp_path / "m", budget) as memories:
        put(memories, 7, kept)
        if not budget:
            settled(memories)
            assert memories.in_ram(7) is None
        found = memories[7]
        assert sha256(found) == sha256(kept)
        assert found.keys() == kept.keys()
        for name, tensor in kept.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert not tensor.numel() or found[name].stride() == tensor.stride(), name


def test_tensors_that_share_memory_can_be_kept_on_disk(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    with Memories(tmp_path / "m", budget=0) as memories:
        put(memories, 0, {"whole": whole, "same": whole, "part": whole[3:5]})
        settled(memories)
        assert memories[0]["part"].tolist() == [3.0, 4.0]
        assert memories[0]["same"].tolist() == whole.tolist()


def test_the_budget_is_used_to_the_last_byte_and_not_exceeded(tmp_path: Path) -> None:
    with Memories(tmp_path / "m", budget=3 * KB) as memories:
        for client, size in ((0, KB), (1, 2 * KB), (2, 4), (3, KB)):
            put(memories, client, memory(size, float(client)))
        settled(memories)
        assert [memories.in_ram(client) is None for client in range(4)] == [
            False,
            False,
            True,
            True,
        ]
        assert [float(memories[client]["m"][0]) for client in range(4)] == [0, 1, 2, 3]


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(0, 99)), max_size=20),
)
@settings(deadline=None, max_examples=25)
def test_the_last_memory_is_found_whatever_came_before(
    tmp_path_factory: pytest.TempPathFactory, budget: int, steps: list[tuple[int, int, int]]
) -> None:
    kept: dict[int, Tensors] = {}
    folder = tmp_path_factory.mktemp("hypothesis") / "m"
    with Memories(folder, budget * KB) as memories:
        for client, size, value in steps:
            kept[client] = memory(size * KB, value)
            put(memories, client, kept[client])
            assert all(sha256(memories[c]) == sha256(kept[c]) for c in kept)
        settled(memories)
        held = [memories.in_ram(client) for client in kept]
        assert sum(num_bytes(each) for each in held if each is not None) <= budget * KB
        assert all(sha256(memories[c]) == sha256(kept[c]) for c in kept)


def test_the_folder_appears_when_it_is_needed_and_goes_in_any_case(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "m"
    with Memories(folder, budget=KB) as memories:
        put(memories, 0, memory(KB))
        assert not folder.exists()
        settled(memories)
        assert folder.is_dir()
    assert not folder.exists()

    def fails() -> None:
        with Memories(folder, budget=0) as memories:
            settled(memories)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not folder.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_refuses_ends_a_run(tmp_path: Path, workers: int) -> None:
    run = made_ready(tmp_path / "run", METHODS["moon"](), workers, memory_budget=0)
    (run.folder / "memories").write_text("in the way")
    with pytest.raises(StorageError, match="memories"):
        list(run.rounds())


def test_a_slow_disk_holds_the_training_up_and_not_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: set[int] = set()
    most = 0
    quick = module.write_tensors

    def slow(*args: Any) -> None:
        nonlocal most
        most = max(most, len(alive))
        time.sleep(0.003)
        quick(*args)

    monkeypatch.setattr(module, "write_tensors", slow)
    with Memories(tmp_path / "m", budget=0) as memories:
        for client in range(20):
            fresh = memory(KB)
            alive.add(client)
            weakref.finalize(fresh["m"], alive.discard, client)
            put(memories, client, fresh)
            del fresh
        assert 1 <= most <= 3
        assert len(alive) <= 2
