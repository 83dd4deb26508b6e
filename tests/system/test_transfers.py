"""Copies between the CPU and a GPU. There is none here: a list of calls stands in for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dcfl.engines.regions import Region
from dcfl.system import transfers

CPU = torch.device("cpu")


class OnCuda:
    """As much of a tensor on a GPU as transfers use; `calls` is what was asked for."""

    def __init__(self, numbers: Tensor, calls: list[str]) -> None:
        self.numbers, self.calls, self.device = numbers, calls, torch.device("cuda", 1)
        self.dtype, self.shape = numbers.dtype, numbers.shape

    def sum(self) -> OnCuda:
        return OnCuda(self.numbers.sum(), self.calls)


class Pinned:
    """Memory that a GPU can copy to by itself: it is there after the stream was waited for."""

    def __init__(self, source: OnCuda) -> None:
        self.source = source

    def copy_(self, tensor: OnCuda, non_blocking: bool) -> Tensor:
        assert non_blocking
        assert tensor is self.source
        tensor.calls.append("copy")
        return tensor.numbers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def stream(device: torch.device) -> Any:
        return SimpleNamespace(synchronize=lambda: made.append(f"wait for {device}"))

    monkeypatch.setattr(transfers, "_pinned_like", Pinned)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    return made


def test_a_reply_is_copied_without_waiting_and_waited_for_once(calls: list[str]) -> None:
    numbers = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([7])}
    on_gpu: Any = {name: OnCuda(tensor, calls) for name, tensor in numbers.items()}
    region = Region()
    found = region.get(region.put(on_gpu))
    assert calls == ["copy", "copy", "wait for cuda:1"]
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "a": [[0, 1, 2], [3, 4, 5]],
        "b": [7],
    }
    region.close()


def test_what_is_kept_does_not_stay_in_pinned_memory(calls: list[str]) -> None:
    there, here = torch.ones(2), torch.zeros(3)
    mixed: Any = {"there": OnCuda(there, calls), "here": here}
    found = transfers.to_host(mixed)
    assert list(found) == ["there", "here"]
    assert torch.equal(found["there"], there)
    assert found["there"] is not there
    assert found["here"] is here
    assert calls == ["copy", "wait for cuda:1"]


def test_what_goes_to_a_gpu_goes_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []

    def pinned(tensor: Tensor) -> Any:
        def to(device: torch.device, non_blocking: bool) -> str:
            asked.append((str(device), non_blocking))
            return "there"

        return SimpleNamespace(to=to)

    monkeypatch.setattr(transfers, "_pinned", pinned)
    gpu = torch.device("cuda", 0)
    assert transfers.to_device({"a": torch.ones(2)}, gpu) == {"a": "there"}
    assert asked == [("cuda:0", True)]


def test_on_the_cpu_nothing_is_copied() -> None:
    tensors = {"a": torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)}
    assert transfers.to_device(tensors, CPU)["a"] is tensors["a"]
    assert transfers.to_host(tensors)["a"] is tensors["a"]


def test_numbers_are_read_as_they_are() -> None:
    numbers = [torch.tensor(0.1), torch.tensor([2**40, 3]), torch.tensor([[0.5, -1.0]]).half()]
    read = transfers.read_numbers(numbers)
    assert read == [torch.tensor(0.1).item(), 2**40, 3, 0.5, -1.0]
    assert transfers.read_numbers([]) == []
