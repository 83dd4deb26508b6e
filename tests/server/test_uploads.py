"""Uploads on their way to the merge: the bits of the list-way, in the memory of one upload."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcfl import tensors as named
from dcfl.errors import ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods import METHODS, Method
from dcfl.methods.method import MeanUpload
from dcfl.methods.scaffold import Scaffold
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.aggregation import ROBUST, Aggregation
from dcfl.server.server import Replies
from dcfl.tensors import sha256

SIZE = 5003  # numbers in an upload, by which its tensors are recognised
START = ServerState(0, {"w": torch.zeros(2)}, {}, {})


def update(client: int, upload: Tensors, w: float = 1.0) -> ClientUpdate:
    steps = LocalTraining().steps_on(1 + client)
    weights = {"w": torch.full((2,), w)}
    return ClientUpdate(client, weights, upload, 1 + client, steps, {"loss": 1.0})


def server(method: Method, aggregation: str = "uniform", population: int = 100) -> Server:
    chosen = ServerSettings(aggregation)  # type: ignore[arg-type]
    return Server(method, population, frozenset({"w"}), LocalTraining(), chosen)


def variates_from_a_list(shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
    """SCAFFOLD's c, computed from a list of all uploads, each operation in its order."""
    after = {}
    for name, first in uploads[0].items():
        total = first.double()
        for upload in uploads[1:]:
            total = total + upload[name].double()
        change = total / len(uploads) * len(uploads) / population
        before = shared[name] if shared else torch.zeros_like(first)
        after[name] = torch.empty_like(first).copy_(before + change)
    return after


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Tensors, list[Tensors], int]:
    """What is shared, the uploads and the population: any dtype and layout, zeros of both signs."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    clients, dtype = draw(st.integers(1, 30)), draw(st.sampled_from([torch.float32, torch.float64]))
    scale = 10.0 ** draw(st.integers(-20, 10))
    shapes = {
        "kernel": (4, 3, 2, 2),
        "pixel": (5, 1, 1, 1),
        "bias": (7,),
        "none": (0, 3),
        "one": (),
    }

    def tensors() -> Tensors:
        drawn = {
            name: torch.randn(shape, generator=generator, dtype=dtype) * scale
            for name, shape in shapes.items()
        }
        drawn["bias"][:4] = torch.tensor([0.0, -0.0, 1e-40, -1e-40])
        return named.canonical(drawn)

    shared = tensors() if draw(st.booleans()) else {}
    return shared, [tensors() for _ in range(clients)], clients + draw(st.integers(0, 1000))


@settings(max_examples=60, deadline=None)
@given(rounds())
def test_folding_gives_the_bits_and_the_layout_of_the_list(
    case: tuple[Tensors, list[Tensors], int],
) -> None:
    shared, uploads, population = case
    wanted = variates_from_a_list(shared, uploads, population)
    folded = Replies(Scaffold(), "uniform", ())
    for client, upload in enumerate(uploads):
        folded.add(update(client, upload), {})
    for found in (
        folded.merged(shared, population, ()),
        Scaffold().merge(shared, uploads, population),
    ):
        assert sha256(found) == sha256(wanted)
        for name, tensor in wanted.items():
            assert (found[name].dtype, found[name].stride()) == (tensor.dtype, tensor.stride())


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_what_is_shared_comes_from_the_replies_that_were_used(aggregation: str) -> None:
    """Krum rejects two of ten at the end of the round: their uploads are not in the sum either."""
    honest = [update(k, {"c": torch.tensor([k / 7])}, 1 + k / 100) for k in range(8)]
    forged = [update(k, {"c": torch.tensor([1e6])}, 50.0) for k in (8, 9)]
    judge = server(Scaffold(), aggregation, population=10)
    state, reports = judge.aggregate(START, judge.broadcast(START), [*honest, *forged])
    used = [report.client for report in reports if report.used]
    assert used == list(range(8 if "krum" in aggregation else 10))
    uploads = [reply.upload for reply in [*honest, *forged] if reply.client in used]
    assert sha256(state.shared) == sha256(variates_from_a_list({}, uploads, 10))


def alive() -> int:
    """Tensors as large as an upload, in whatever precision."""
    return sum(issubclass(type(o), Tensor) and o.numel() == SIZE for o in gc.get_objects())


def peak(method: Method, aggregation: str, clients: int) -> int:
    """Of a round of so many clients, when the last reply arrives."""
    seen: list[int] = []

    def replies() -> Iterator[ClientUpdate]:
        for client in range(clients):
            yield update(client, {"c": torch.full((SIZE,), client / 3)}, client / 100)
        gc.collect()
        seen.append(alive())

    judge = server(method, aggregation)
    judge.aggregate(START, judge.broadcast(START), replies())
    return seen[0]


@pytest.mark.parametrize("aggregation", ["uniform", "fednova", "median"])
def test_scaffolds_uploads_do_not_gather(aggregation: str) -> None:
    """But under robust rules, which keep all weights as well."""
    before = alive()
    few, many = (peak(Scaffold(), aggregation, clients) - before for clients in (15, 40))
    if aggregation in ROBUST:
        assert many - few == 25
    else:
        assert few == many <= 2  # the sum and the upload that has just come


def test_whose_uploads_are_folded() -> None:
    for name, method in METHODS.items():
        folds = Replies(method(), "uniform", ()).sum is not None
        assert folds == (name in ("scaffold", "feddc", "ccvr")), name
        assert Replies(method(), "median", ()).sum is None


def test_a_class_derived_from_scaffold_may_have_a_merge_with_a_list() -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class FirstTwo(Scaffold):
        def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
            seen.append(len(uploads))
            return super().merge(shared, uploads[:2], population)

    replies = [update(client, {"c": torch.tensor([1.0 + client])}) for client in range(5)]
    judge = server(FirstTwo(), population=10)
    state, _ = judge.aggregate(START, judge.broadcast(START), replies)
    assert seen == [5]
    assert state.shared["c"].tolist() == pytest.approx([0.3])


@pytest.mark.parametrize("name", ["dcfl-pw", "scaffold"])
@pytest.mark.parametrize("aggregation", ["uniform", "median"])
def test_the_next_reply_may_reuse_the_memory_of_this_one(name: str, aggregation: str) -> None:
    def upload(client: int) -> dict[str, Tensor]:
        return {"sums": torch.tensor([[1.0, client]]), "counts": torch.tensor([1])}

    apart = [update(client, upload(client), 1 + client / 9) for client in range(6)]
    place = update(0, upload(0))

    def in_one_place() -> Iterator[ClientUpdate]:
        for reply in apart:
            for part in ("weights", "upload"):
                for key, tensor in getattr(place, part).items():
                    tensor.copy_(getattr(reply, part)[key])
            yield replace(reply, weights=place.weights, upload=place.upload)
        place.upload["sums"].fill_(float("nan"))

    judge = server(METHODS[name](), aggregation)
    one, other = (
        judge.aggregate(START, judge.broadcast(START), replies)[0]
        for replies in (apart, in_one_place())
    )
    assert sha256(one.shared) == sha256(other.shared)
    assert sha256(one.weights) == sha256(other.weights)


@dataclass(frozen=True)
class Averaging(Method):
    def merge_mean(self, shared: Tensors, uploads: MeanUpload, population: int) -> Tensors:
        return uploads.cast(uploads.tensors)


def test_a_mean_in_the_form_of_the_uploads() -> None:
    uploads = [{"a": torch.tensor([2.0 * k]).bfloat16(), "n": torch.tensor(k)} for k in (1, 2)]
    judge = server(Averaging())
    replies = [update(client, upload) for client, upload in enumerate(uploads)]
    shared = judge.aggregate(START, judge.broadcast(START), replies)[0].shared
    assert (shared["a"].dtype, shared["a"].tolist()) == (torch.bfloat16, [3.0])
    assert (shared["n"].dtype, shared["n"].item()) == (torch.int64, 1)  # integers have no mean
    assert Averaging().merge({"old": torch.ones(1)}, [], 5).keys() == {"old"}


@pytest.mark.parametrize("aggregation", ["uniform", "median"])
@pytest.mark.parametrize(
    "odd", [{"b": torch.ones(2)}, {"a": torch.ones(1)}, {"a": torch.ones(2).double()}, {}]
)
def test_uploads_that_have_no_mean_are_named(aggregation: str, odd: Tensors) -> None:
    judge = server(Averaging(), aggregation)
    replies = [update(0, {"a": torch.ones(2)}), update(1, odd)]
    with pytest.raises(ConfigError, match=r"averaging: .* names, shapes or dtypes differ"):
        judge.aggregate(START, judge.broadcast(START), replies)
