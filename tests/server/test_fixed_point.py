"""Replies as whole numbers: rounding, sums that never wrap, and what is refused with sums alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcfl
from dcfl.config import experiment_from
from dcfl.errors import ConfigError, Diverged
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.fixed_point import FixedPoint, SecureMean

RECEIVED = {
    "weight": torch.tensor([[0.5, -1.0], [0.25, 2.0]]),
    "bias": torch.tensor([1.0]),
    "running_mean": torch.tensor([10.0, -3.0]),
    "num_batches": torch.tensor(7),
}
SENT = Broadcast(1, RECEIVED, {})
UPLOAD = {"sums": torch.empty(2, device="meta"), "counts": torch.empty(2, dtype=torch.int64)}


def form(clients: int, range: float = 1.0) -> FixedPoint:
    return FixedPoint(frozenset({"weight", "bias"}), UPLOAD, range, clients, 2)


def reply(client: int, change: float, upload: Tensors | None = None) -> ClientUpdate:
    weights = {
        name: one + change if one.is_floating_point() else one for name, one in RECEIVED.items()
    }
    own = upload or {"sums": torch.tensor([change, 100.5]), "counts": torch.tensor([client, 5])}
    return ClientUpdate(client, weights, own, 9, 4, {"loss": 1.0, "seconds": 2.0})


def test_a_reply_is_rounded_as_the_definition_says() -> None:
    """With 5 clients, 5 < 2^3: steps of 2^-28 of the range, or 2^-60 of 2^32."""
    update = reply(3, 0.3)
    sent = form(5, range=0.25).encode(update, SENT)
    exact = {name: update.weights[name].double() - RECEIVED[name].double() for name in RECEIVED}
    steps = [
        max(-(2**28), min(2**28, round(number / (0.25 / 2**28))))
        for name in ("bias", "weight")  # in alphabetical order
        for number in exact[name].flatten().tolist()
    ]
    assert sent.weights["parameters"].tolist() == steps == [2**28] * 5
    wide = [*exact["running_mean"].tolist(), *update.upload["sums"].tolist()]
    square = sum(float(exact[name].square().sum()) for name in ("weight", "bias"))
    sums = [round(number * 2**28) for number in wide]
    counts, others = [3, 5], sent.weights["others"].tolist()
    assert others == [*sums[:2], *counts, *sums[2:], round(square * 2**28), 5]  # 5 were clipped
    assert (sent.upload, sent.num_examples, sent.num_steps) == ({}, 1, 0)
    assert sent.metrics == {"seconds": 2.0}


@settings(max_examples=50)
@given(st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=9), st.floats(0.1, 100))
def test_the_mean_is_that_of_the_clipped_changes(changes: list[float], most: float) -> None:
    """Within half a step, and the order of clients does not matter to any bit."""
    whole = form(len(changes), most)
    updates = [whole.encode(reply(k, change), SENT) for k, change in enumerate(changes)]
    folds = [SecureMean(whole), SecureMean(whole)]
    for update in updates:
        folds[0].add(update)
    for update in reversed(updates):
        folds[1].add(update)
    folded, other = (fold.finish(RECEIVED) for fold in folds)
    step = most / 2 ** (31 - len(changes).bit_length())
    clipped = [
        (reply(k, change).weights["weight"].double() - RECEIVED["weight"].double()).clamp(
            -most, most
        )
        for k, change in enumerate(changes)
    ]
    wanted = torch.stack(clipped).mean(dim=0)
    assert torch.allclose(folded.direction["weight"], wanted, rtol=0, atol=step)
    assert torch.equal(folded.direction["weight"], other.direction["weight"])
    assert folded.buffers["num_batches"] == 7
    assert folds[0].upload["counts"].tolist() == [sum(range(len(changes))), 5 * len(changes)]


@pytest.mark.parametrize("clients", [2, 3, 4, 7, 8, 100])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_sum_of_a_round_wraps(clients: int, sign: int) -> None:
    whole = form(clients)
    largest = {"sums": torch.full((2,), sign * 1e30), "counts": torch.full((2,), sign * 2**62)}
    fold = SecureMean(whole)
    for client in range(clients):
        fold.add(whole.encode(reply(client, sign * 1e6, largest), SENT))
    folded = fold.finish(RECEIVED)
    assert folded.direction["bias"].tolist() == [sign]
    assert fold.upload["sums"].tolist() == [sign * clients * 2.0**32] * 2
    assert fold.told["log/clipped"] == 1.0


def test_what_is_not_finite_does_not_enter_a_sum() -> None:
    update = reply(0, 0.1)
    broken = replace(update, weights={**update.weights, "bias": torch.tensor([float("nan")])})
    with pytest.raises(Diverged, match="bias is no longer finite"):
        form(3).encode(broken, SENT)


def test_a_sum_makes_the_prototypes_that_single_uploads_make() -> None:
    """Values with few bits, which fixed point keeps as they are."""
    method = METHODS["dcfl-pw"]()
    state = ServerState(0, RECEIVED, {}, {})
    uploads = [
        {"sums": torch.tensor([[1.5, 2.0], [0.0, 0.0]]), "counts": torch.tensor([3, 0])},
        {"sums": torch.tensor([[0.5, -4.0], [8.0, 1.0]]), "counts": torch.tensor([1, 4])},
    ]
    like = {name: torch.empty_like(one, device="meta") for name, one in uploads[0].items()}
    whole = FixedPoint(frozenset({"weight", "bias"}), like, 1.0, 2, 2)
    updates = [reply(k, 0.25 * k, upload) for k, upload in enumerate(uploads)]
    server = Server(method, 2, whole.trainable, LocalTraining(), fixed_point=whole)
    secret = [whole.encode(update, SENT) for update in updates]
    after, reports = server.aggregate(state, server.broadcast(state), secret)
    wanted = method.merge({}, uploads, 2)
    assert all(torch.equal(after.shared[name], wanted[name]) for name in wanted)
    assert float(after.shared["log/clipped"]) == 0
    assert torch.equal(after.weights["weight"], RECEIVED["weight"] + 0.125)
    # The engine of sites has the sum alone: in the first reply, and the others are empty.
    total = {name: secret[0].weights[name] + secret[1].weights[name] for name in secret[0].weights}
    alone = [replace(secret[0], weights=total), replace(secret[1], weights={})]
    same, _ = server.aggregate(state, server.broadcast(state), alone)
    assert all(torch.equal(same.weights[name], after.weights[name]) for name in RECEIVED)
    assert all(report.used for report in reports)


def test_a_reply_of_another_form_is_rejected() -> None:
    whole = form(2)
    server = Server(METHODS["fedavg"](), 2, whole.trainable, LocalTraining(), fixed_point=whole)
    state = ServerState(0, RECEIVED, {}, {})
    _, reports = server.aggregate(state, server.broadcast(state), [reply(0, 0.1)])
    assert [report.outcome for report in reports] == ["rejected"]


@dataclass(frozen=True)
class OwnMerge(METHODS["dcfl-pw"]):  # type: ignore[misc]
    name = "own-merge"

    def merge(self, shared: Tensors, uploads: Any, population: int) -> Tensors:
        return shared


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"server": {"aggregation": "krum"}}, '"krum" compares single replies'),
        ({"server": {"aggregation": "median"}}, '"median" compares single replies'),
        ({"server": {"aggregation": "norm-clipping"}}, "compares single replies"),
        ({"server": {"aggregation": "samples"}}, "weighs replies by sizes"),
        ({"server": {"aggregation": "fednova"}}, "weighs replies by sizes"),
        ({"method": {"name": "q-fedavg"}}, "q-fedavg looks at single replies"),
        ({"method": {"name": "fedma"}}, "fedma looks at single replies"),
        ({"method": {"name": "fedpcl"}}, "is not a sum of uploads"),
        ({"method": {"name": "fedproc", "prototype_merge": "median"}}, "is not a sum of uploads"),
        (
            {"method": {"name": "dcfl-pw", "prototype_weights": "uniform"}},
            "is not a sum of uploads",
        ),
        ({"output": {"keep_every": 1, "keep_updates": True}}, "nobody has single updates"),
        ({"federation": {"baseline": "alone"}, "method": {"name": "fedavg"}}, "sums nothing"),
    ],
)
def test_what_needs_single_replies_is_refused_in_a_line(words: dict[str, Any], why: str) -> None:
    experiment_from(None, words)  # without sums it is fine
    words = {**words, "server": {**words.get("server", {}), "secure": True}}
    with pytest.raises(ConfigError, match=why) as refused:
        experiment_from(None, words)
    assert "\n" not in str(refused.value)


def test_a_merge_of_ones_own_is_refused_until_it_says_that_it_adds_up() -> None:
    with pytest.raises(ConfigError, match="own-merge merges, as it is set, is not a sum"):
        dcfl.Experiment(method=OwnMerge(), server=ServerSettings(secure=True))


def test_a_round_of_one_has_no_sum() -> None:
    with pytest.raises(ConfigError, match="the sum of one reply is that reply"):
        dcfl.run(server={"secure": True}, federation={"participation": 0.05})


@pytest.mark.parametrize(("cohort", "needed"), [(2, 2), (3, 2), (6, 4), (9, 6), (10, 7), (100, 66)])
def test_more_than_half_of_a_round_must_survive(cohort: int, needed: int) -> None:
    assert ServerSettings(secure=True).survivors(cohort) == needed
    assert 2 * needed > cohort
    with pytest.raises(ConfigError, match=r"server.secure_threshold must lie in"):
        ServerSettings(secure_threshold=0.5)
