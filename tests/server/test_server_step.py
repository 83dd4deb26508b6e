"""A method's own part of the server by hand: weights of replies, and what becomes of their mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from dcfl.errors import ConfigError, Diverged
from dcfl.experiment import Experiment
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods import Method, ServerStep
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.tensors import sha256


def weights(w: float, mean: float = 0.0) -> dict[str, Tensor]:
    return {"w": torch.tensor([w, 0.0]), "u": torch.tensor([w]), "mean": torch.tensor([mean])}


START = ServerState(2, weights(1.0), {}, {})


def update(client: int, w: float, mean: float = 0.0, n: int = 1, **upload: Tensor) -> ClientUpdate:
    return ClientUpdate(client, weights(w, mean), upload, n, LocalTraining().steps_on(n), {})


def server(method: Method, **settings: Any) -> Server:
    return Server(method, 10, frozenset({"w", "u"}), LocalTraining(), ServerSettings(**settings))


def after(method: Method, *replies: ClientUpdate, **settings: Any) -> ServerState:
    one = server(method, **settings)
    return one.aggregate(START, one.broadcast(START), iter(replies))[0]


SEEN: list[ServerStep] = []


@dataclass(frozen=True)
class Watching(Method):
    """Keeps what it is given, and doubles the direction."""

    def server_step(self, step: ServerStep) -> ServerStep:
        SEEN.append(step)
        twice = {name: 2 * change for name, change in step.direction.items()}
        return replace(step, direction=twice, kept={"rounds": torch.tensor([float(step.round)])})


@dataclass(frozen=True)
class Replies(Watching):
    keeps_replies: ClassVar = True


def seen(*replies: ClientUpdate, method: Method | None = None, **settings: Any) -> ServerStep:
    after(method or Watching(), *replies, **settings)
    return SEEN.pop()


def test_it_gets_the_mean_direction_and_moves_the_parameters() -> None:
    state = after(Watching(), update(0, 2.0, 4.0), update(1, 5.0, 8.0))
    step = SEEN.pop()
    assert (step.round, step.clients, step.population) == (3, 2, 10)
    assert step.weights.keys() == step.direction.keys() == {"w", "u"}
    assert step.direction["w"].tolist() == [2.5, 0.0]
    assert step.direction["w"].dtype == torch.float64
    assert state.weights["w"].tolist() == [6.0, 0.0]
    assert state.weights["mean"].tolist() == [6.0]  # buffers are averaged, whatever it says
    assert state.kept["rounds"].tolist() == [3.0]


def test_mean_square_is_over_all_parameters_and_no_buffer() -> None:
    assert seen(update(0, 2.0, 7.0), update(1, 5.0)).mean_square == pytest.approx((2 + 32) / 2)


def test_mean_square_is_weighted_as_the_mean_is() -> None:
    step = seen(update(0, 2.0, n=1), update(1, 5.0, n=3), aggregation="samples")
    assert step.mean_square == pytest.approx((2 + 3 * 32) / 4)


def test_forged_replies_do_not_push_the_mean_square_up_under_a_robust_rule() -> None:
    honest = [update(k, 2.0) for k in range(3)]
    forged = [update(3, -1e6), update(4, 1e6)]
    assert seen(*honest, *forged, aggregation="median").mean_square == pytest.approx(2)


def test_replies_that_a_rule_rejects_are_not_seen() -> None:
    replies = [update(k, 2.0 + 0.01 * k) for k in range(6)] + [update(6, 1e6)]
    settings = {"aggregation": "multi-krum", "byzantine": 0.1}
    step = seen(*replies, method=Replies(), **settings)
    assert 6 not in [reply.client for reply in step.replies]
    assert step.clients == len(step.replies) < 7


def test_it_sees_the_replies_if_it_asks_for_them() -> None:
    step = seen(update(0, 2.0), update(1, 5.0), method=Replies())
    assert [reply.client for reply in step.replies] == [0, 1]
    assert step.replies[1].weights["w"].tolist() == [5.0, 0.0]


def test_a_server_optimiser_takes_the_methods_direction() -> None:
    momentum = OPTIMIZERS["fedavgm"](momentum=0.5)
    one = server(Watching(), optimizer=momentum)
    state, _ = one.aggregate(START, one.broadcast(START), [update(0, 2.0)])
    state, _ = one.aggregate(state, one.broadcast(state), [update(0, 4.0)])
    assert state.weights["w"].tolist() == [3.0 + 0.5 * 2 + 2 * 1, 0.0]


def test_parts_that_are_not_sent_are_out_of_reach() -> None:
    one = replace(server(Watching()), unsent=frozenset({"u"}))
    reply = update(0, 2.0)
    sent = {name: tensor for name, tensor in reply.weights.items() if name != "u"}
    state, _ = one.aggregate(START, one.broadcast(START), [replace(reply, weights=sent)])
    assert SEEN.pop().direction.keys() == {"w"}
    assert state.weights["u"].tolist() == [1.0]


def test_too_few_replies_leave_its_state_alone() -> None:
    SEEN.clear()
    one = replace(server(Watching()), minimum_replies=2)
    before = replace(START, kept={"rounds": torch.tensor([1.0])})
    state, _ = one.aggregate(before, one.broadcast(before), [update(0, 2.0)])
    assert SEEN == []
    assert state.kept["rounds"].tolist() == [1.0]


@dataclass(frozen=True)
class Sharing(Method):
    """Shares other things than `merge` made of the uploads."""

    def upload(self, client: Any) -> Tensors:
        return {"loss": torch.ones(1)}

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        return {"sum": torch.stack([upload["loss"] for upload in uploads]).sum(dim=0)}

    def server_step(self, step: ServerStep) -> ServerStep:
        return replace(step, shared={"half": step.shared["sum"] / 2})


def test_what_is_shared_may_be_another_than_what_was_merged() -> None:
    state = after(Sharing(), update(0, 2.0, loss=torch.ones(1)), update(1, 2.0, loss=torch.ones(1)))
    assert {name: float(tensor) for name, tensor in state.shared.items()} == {"half": 1.0}


@dataclass(frozen=True)
class ByLoss(Method):
    """The larger a client's loss, the more it counts."""

    def weigh(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> list[float]:
        return [w * float(u.upload["loss"]) for u, w in zip(updates, weights, strict=True)]


def test_a_method_weighs_the_replies() -> None:
    replies = [
        update(0, 2.0, 4.0, n=2, loss=torch.tensor(1.0)),
        update(1, 6.0, 8.0, n=1, loss=torch.tensor(3.0)),
    ]
    state = after(ByLoss(), *replies)
    assert state.weights["w"].tolist() == [5.0, 0.0]
    assert state.weights["mean"].tolist() == [7.0]
    assert after(ByLoss(), *replies, aggregation="samples").weights["w"][0] == pytest.approx(4.4)


def test_equal_weights_give_the_bits_of_the_plain_mean() -> None:
    class Plain(Method):
        def weigh(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> list[float]:
            return [*weights]

    replies = [update(k, 0.1 + k / 3, k / 7, n=1 + k) for k in range(4)]
    for rule in ("uniform", "samples"):
        plain = after(Method(), *replies, aggregation=rule)
        assert sha256(after(Plain(), *replies, aggregation=rule).weights) == sha256(plain.weights)


def bad(step: Callable[[ServerStep], Any] | None = None, weigh: Any = None) -> Method:
    hooks = {"server_step": lambda self, given: step(given)} if step else {"weigh": weigh}
    return type("Bad", (Method,), hooks)()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (bad(lambda step: replace(step, direction={})), "direction with missing or unknown names"),
        (bad(lambda step: None), "bad: server_step raised AttributeError"),
        (bad(lambda step: replace(step, kept={"h": 1.0})), "server_step must return tensors"),
        (bad(weigh=lambda *_: [1.0]), "a weight for each reply"),
        (bad(weigh=lambda *_: [1.0, -1.0]), "none below 0"),
        (bad(weigh=lambda *_: [0.0, 0.0]), "not all 0"),
        (bad(weigh=lambda *_: [float("nan"), 1.0]), "a weight for each reply"),
    ],
)
def test_a_hook_that_returns_nonsense_is_named(method: Method, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        after(method, update(0, 2.0), update(1, 5.0))


@pytest.mark.parametrize(
    "read",
    [
        lambda step: sum(step.shares),
        lambda step: len(step.replies),
        lambda step: [*zip(step.replies, step.shares, strict=True)],
        lambda step: step.replies[0],
    ],
)
def test_replies_that_nobody_keeps_are_refused(read: Callable[[ServerStep], Any]) -> None:
    wanted = "bad: server_step raised ValueError: step.replies .* keeps_replies: ClassVar = True$"
    with pytest.raises(ConfigError, match=wanted):
        after(bad(read), update(0, 2.0))
    method = type("Kept", (Watching,), {"keeps_replies": True})()
    read(seen(update(0, 2.0), method=method))


@pytest.mark.parametrize("part", ["direction", "kept", "shared"])
def test_a_step_that_is_no_longer_finite_ends_the_run(part: str) -> None:
    def explode(step: ServerStep) -> ServerStep:
        return replace(step, **{part: {n: c / 0 for n, c in step.direction.items()}})

    with pytest.raises(Diverged, match="bad"):
        after(bad(explode), update(0, 2.0))


@pytest.mark.parametrize(
    ("wishes", "settings", "message"),
    [
        ({"any_optimizer": False}, {"optimizer": OPTIMIZERS["fedadam"]()}, 'use "fedavg"'),
        ({"any_aggregation": False}, {"aggregation": "median"}, 'use "uniform" or "samples"'),
        ({"any_aggregation": False}, {"aggregation": "fednova"}, 'use "uniform" or "samples"'),
        ({"weigh": ByLoss.weigh}, {"aggregation": "krum"}, 'use "uniform" or "samples"'),
    ],
)
def test_what_does_not_go_together_is_refused(
    wishes: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    method = type("Choosy", (Method,), wishes)()
    Experiment(method=method)
    with pytest.raises(ConfigError, match=message):
        Experiment(method=method, server=ServerSettings(**settings))
