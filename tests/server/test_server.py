"""The server by hand: a model of one parameter, one float buffer and one counter."""

import gc
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.errors import ClientFailure, ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS
from dcfl.methods.dcfl import DCFLPrototypeWise
from dcfl.methods.fedavg import FedAvg
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.aggregation import ROBUST
from dcfl.tensors import sha256


def weights(w: float, mean: float = 0.0) -> dict[str, Tensor]:
    return {
        "w": torch.tensor([w, -w]),
        "running_mean": torch.tensor([mean]),
        "num_batches_tracked": torch.tensor(0),
    }


def update(client: int, w: float, mean: float = 0.0, n: int = 1) -> ClientUpdate:
    steps = LocalTraining().steps_on(n)
    return ClientUpdate(client, weights(w, mean), {}, n, steps, {"loss": 1.0})


def server(aggregation: str = "uniform") -> Server:
    settings = ServerSettings(aggregation)  # type: ignore[arg-type]
    return Server(METHODS["fedavg"](), 10, frozenset({"w"}), LocalTraining(), settings)


START = ServerState(3, weights(1.0), {}, {})


def after(*replies: ClientUpdate | ClientFailure, aggregation: str = "uniform") -> ServerState:
    broadcast = server().broadcast(START)
    return server(aggregation).aggregate(START, broadcast, iter(replies))[0]


def test_the_broadcast_is_the_state_for_the_next_round() -> None:
    broadcast = server().broadcast(START)
    assert broadcast.round == 4
    assert sha256(broadcast.weights) == sha256(START.weights)
    assert broadcast.num_bytes == 2 * 4 + 4 + 8


def test_uniform_is_the_plain_mean_whatever_the_sizes() -> None:
    state = after(update(0, 2.0, 4.0, n=1), update(1, 5.0, 8.0, n=99))
    assert state.weights["w"].tolist() == [3.5, -3.5]
    assert state.weights["running_mean"].tolist() == [6.0]
    assert state.round == 4


def test_samples_weighs_by_the_number_of_examples() -> None:
    state = after(update(0, 2.0, 4.0, n=1), update(1, 6.0, 8.0, n=3), aggregation="samples")
    assert state.weights["w"].tolist() == [5.0, -5.0]
    assert state.weights["running_mean"].tolist() == [7.0]


def test_a_single_client_that_changes_nothing_leaves_every_bit() -> None:
    torch.manual_seed(0)
    state = ServerState(0, {"w": torch.randn(1000) * 1e-3}, {}, {})
    broadcast = server().broadcast(state)
    reply = ClientUpdate(0, {"w": state.weights["w"].clone()}, {}, 1, 0, {"loss": 0.0})
    new, _ = server().aggregate(state, broadcast, [reply] * 3)
    assert sha256(new.weights) == sha256(state.weights)


def test_state_in_state_out_the_old_one_is_untouched() -> None:
    before = sha256(START.weights)
    after(update(0, 2.0), update(1, 5.0))
    assert sha256(START.weights) == before


def test_replies_are_folded_as_they_come() -> None:
    """Only one reply is alive at a time: the generator sees the earlier ones collected."""
    alive: list[weakref.ref[Tensor]] = []

    def replies() -> Iterator[ClientUpdate]:
        for client in range(4):
            gc.collect()
            assert sum(reference() is not None for reference in alive) <= 1
            reply = update(client, float(client))
            alive.append(weakref.ref(reply.weights["w"]))
            yield reply
            del reply

    server().aggregate(START, server().broadcast(START), replies())
    assert len(alive) == 4


def test_layout_and_dtype_survive_the_round() -> None:
    w = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    state = ServerState(0, {"w": w}, {}, {})
    reply = ClientUpdate(0, {"w": w * 2}, {}, 1, 0, {"loss": 0.0})
    new, _ = server().aggregate(state, server().broadcast(state), [reply])
    assert new.weights["w"].is_contiguous(memory_format=torch.channels_last)
    assert new.weights["w"].dtype == torch.float32


class TestOutcomes:
    """sampled = ok + failed + rejected, and only the valid ones count."""

    def aggregate(self, *replies: ClientUpdate | ClientFailure):  # type: ignore[no-untyped-def]
        return server().aggregate(START, server().broadcast(START), iter(replies))

    def test_a_failed_client_costs_its_own_update(self) -> None:
        state, reports = self.aggregate(update(0, 2.0), ClientFailure(1, "diverged"))
        assert state.weights["w"].tolist() == [2.0, -2.0]
        assert [(r.client, r.outcome, r.reason) for r in reports] == [
            (0, "ok", ""),
            (1, "failed", "diverged"),
        ]
        assert [(r.bytes_up, r.bytes_down) for r in reports] == [(20, 20), (0, 20)]

    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            ({"w": torch.tensor([1.0, float("nan")])}, "w is not finite"),
            ({"w": torch.tensor([float("inf"), 0.0])}, "w is not finite"),
            ({"w": torch.tensor([1.0])}, r"w is torch.float32 \[1\]"),
            ({"w": torch.tensor([1.0, 2.0]).double()}, "w is torch.float64"),
            ({"extra": torch.tensor([1.0])}, "missing or unknown names: extra"),
        ],
    )
    def test_a_reply_that_does_not_fit_is_rejected_alone(
        self, bad: dict[str, Tensor], reason: str
    ) -> None:
        wrong = ClientUpdate(1, {**weights(9.0), **bad}, {}, 1, 0, {"loss": 1.0})
        state, reports = self.aggregate(update(0, 2.0), wrong)
        honest, _ = self.aggregate(update(0, 2.0))
        assert sha256(state.weights) == sha256(honest.weights)
        assert reports[1].outcome == "rejected"
        assert re.search(reason, reports[1].reason)

    @pytest.mark.parametrize(
        "counts",
        [
            {"num_examples": 0},
            {"num_examples": 2**60},
            {"num_examples": 65},  # which are five steps
            *({"num_steps": steps} for steps in (-1, 1, 2**39)),
        ],
    )
    def test_counts_that_cannot_be_are_rejected(self, counts: dict[str, int]) -> None:
        assert self.aggregate(replace(update(1, 2.0), **counts))[1][0].outcome == "rejected"

    def test_a_round_without_replies_leaves_the_model_alone(self) -> None:
        state, reports = self.aggregate(ClientFailure(1, "gone"), ClientFailure(2, "gone"))
        assert sha256(state.weights) == sha256(START.weights)
        assert state.round == START.round + 1
        assert len(reports) == 2

    def test_uploads_are_checked_too(self) -> None:
        wrong = ClientUpdate(
            1, weights(2.0), {"sums": torch.tensor([float("nan")])}, 1, 0, {"loss": 1.0}
        )
        assert self.aggregate(wrong)[1][0].outcome == "rejected"


def test_steps_that_a_site_invents_do_not_move_the_model() -> None:
    honest = [update(client, 1.0 + client / 10, n=40) for client in range(4)]
    boasts = [replace(update(4, 1.0, n=40), num_steps=steps) for steps in (0, 1, 6, 2**39)]
    alone = after(*honest, aggregation="fednova").weights
    for boast in boasts:
        assert sha256(after(*honest, boast, aggregation="fednova").weights) == sha256(alone)


def test_a_broadcast_counts_what_the_method_shares() -> None:
    broadcast = Broadcast(1, weights(1.0), {"prototypes": torch.zeros(10, 4)})
    assert broadcast.num_bytes == 20 + 160


# Robust rules


KRUMS = ["krum", "multi-krum"]


@pytest.mark.parametrize("aggregation", KRUMS)
def test_krum_is_not_used_where_two_equal_forgeries_would_win(aggregation: str) -> None:
    """Five replies of twenty clients: two may be forged, and each is the other's nearest."""
    settings = ServerSettings(aggregation)  # type: ignore[arg-type]
    judge = Server(METHODS["fedavg"](), 20, frozenset({"w"}), LocalTraining(), settings)
    honest = [update(client, 1.0 + client / 100) for client in range(3)]
    forged = [update(client, 100.0) for client in (3, 4)]
    state, reports = judge.aggregate(START, judge.broadcast(START), [*honest, *forged])
    assert sha256(state.weights) == sha256(START.weights)
    assert [(report.outcome, report.used) for report in reports] == [("ok", False)] * 5


def with_prototypes(client: int, w: float, prototype: list[float]) -> ClientUpdate:
    """Ten images of one class."""
    upload = {"sums": 10 * torch.tensor([prototype]), "counts": torch.tensor([10])}
    return replace(update(client, w, n=10), upload=upload)


def merged(aggregation: str, replies: list[ClientUpdate], **fields: str) -> list[float]:
    """The prototype after a round of all ten clients."""
    settings = ServerSettings(aggregation)  # type: ignore[arg-type]
    method = METHODS["dcfl-pw"](**fields)
    judge = Server(method, 10, frozenset({"w"}), LocalTraining(), settings)
    state, _ = judge.aggregate(START, judge.broadcast(START), replies)
    vector: list[float] = state.shared["prototypes"][0].tolist()
    return vector


HONEST = [with_prototypes(client, 1.0 + client / 100, [1.0, client / 50]) for client in range(8)]


@pytest.mark.parametrize("aggregation", ROBUST)
def test_two_forgers_of_ten_do_not_turn_a_prototype(aggregation: str) -> None:
    """Honest weights, which no rule for weights can object to, with prototypes the other way."""
    forged = [with_prototypes(client, 1.04, [-100.0, 0.0]) for client in (8, 9)]
    truth = torch.tensor(merged(aggregation, HONEST))
    voted = torch.tensor(merged(aggregation, [*HONEST, *forged]))
    averaged = torch.tensor(merged(aggregation, [*HONEST, *forged], prototype_merge="mean"))
    assert F.cosine_similarity(voted, truth, dim=0) > 0.99
    assert F.cosine_similarity(averaged, truth, dim=0) < -0.9


@pytest.mark.parametrize("merge", ["mean", "median"])
@pytest.mark.parametrize("aggregation", KRUMS)
def test_a_reply_that_was_rejected_has_no_prototypes_either(aggregation: str, merge: str) -> None:
    forged = [with_prototypes(client, 50.0, [0.0, 30.0]) for client in (8, 9)]
    among_others = merged(aggregation, [*HONEST, *forged], prototype_merge=merge)
    alone = DCFLPrototypeWise(prototype_merge=merge).merge(  # type: ignore[arg-type]
        {}, [reply.upload for reply in HONEST], 10
    )
    assert among_others == alone["prototypes"][0].tolist()


def test_a_variance_below_zero_is_turned_away() -> None:
    sent = {"w": torch.ones(1), "bn.running_var": torch.ones(2)}
    state = ServerState(0, sent, {}, {})
    wrong = {"w": torch.ones(1), "bn.running_var": torch.tensor([1.0, -1e-3])}
    replies = [ClientUpdate(0, wrong, {}, 1, 0, {})]
    _, (report,) = server().aggregate(state, server().broadcast(state), replies)
    assert (report.outcome, report.reason) == ("rejected", "bn.running_var is negative")


@pytest.mark.parametrize(
    ("merge", "said"),
    [
        (lambda *_: 1 / 0, "merge raised ZeroDivisionError"),
        (lambda *_: None, "tensors by name"),
        (lambda *_: {"c": 1.0}, "tensors by name"),
    ],
)
def test_a_merge_that_goes_wrong_is_the_methods_own(merge: Any, said: str) -> None:
    method = type("Mine", (FedAvg,), {"merge": merge})()
    server = Server(method, 10, frozenset({"w"}), LocalTraining())
    state = ServerState(0, {"w": torch.zeros(2)}, {}, {})
    update = ClientUpdate(0, {"w": torch.ones(2)}, {}, 1, 0, {})
    with pytest.raises(ConfigError, match=said):
        server.aggregate(state, server.broadcast(state), [update])
