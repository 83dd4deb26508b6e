"""Server optimisers: three rounds of one number with plain Python arithmetic."""

from math import copysign, sqrt

import pytest
import torch
from torch import Tensor

from dcfl.errors import ConfigError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.optimizers import (
    OPTIMIZERS,
    FedACG,
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    ServerOptimizer,
)
from dcfl.tensors import sha256

START = 1.0
DELTAS = [0.5, -0.2, 0.003]  # large, small and of another sign


def number(value: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([value], dtype=torch.float64)}


def three_rounds(optimizer: ServerOptimizer, deltas: list[float] = DELTAS) -> list[float]:
    weights, slots, path = number(START), {}, []
    for delta in deltas:
        weights, slots = optimizer.step(weights, number(delta), slots)
        path.append(weights["w"].item())
    return path


def close(path: list[float]) -> object:
    return pytest.approx(path, rel=1e-12, abs=1e-15)


def test_fedavg_adds_the_direction() -> None:
    assert three_rounds(ServerOptimizer()) == close([1.5, 1.3, 1.303])


@pytest.mark.parametrize(("beta", "damping"), [(0.9, 0.0), (0.4, 0.0), (0.9, 0.9)])
def test_fedavgm_adds_the_direction_to_its_momentum(beta: float, damping: float) -> None:
    m1 = (1 - damping) * 0.5
    m2 = beta * m1 - (1 - damping) * 0.2
    m3 = beta * m2 + (1 - damping) * 0.003
    expected = [START + m1, START + m1 + m2, START + m1 + m2 + m3]
    assert three_rounds(FedAvgM(momentum=beta, dampening=damping)) == close(expected)


def adaptive_path(rule: str, lr: float, b1: float, b2: float, tau: float) -> list[float]:
    """Reddi et al.: no bias correction, v starts at tau^2, m at 0."""
    w, m, v, path = START, 0.0, tau * tau, []
    for delta in DELTAS:
        m = b1 * m + (1 - b1) * delta
        if rule == "adagrad":
            v = v + delta**2
        elif rule == "adam":
            v = b2 * v + (1 - b2) * delta**2
        else:
            v = v - (1 - b2) * delta**2 * copysign(1.0, v - delta**2)
        w = w + lr * m / (sqrt(v) + tau)
        path.append(w)
    return path


@pytest.mark.parametrize(
    ("optimizer", "rule", "b1"),
    [(FedAdam, "adam", 0.9), (FedYogi, "yogi", 0.9), (FedAdagrad, "adagrad", 0.0)],
)
def test_adaptive_optimizers_with_the_defaults_of_the_original(
    optimizer: type[ServerOptimizer], rule: str, b1: float
) -> None:
    assert three_rounds(optimizer()) == close(adaptive_path(rule, 0.01, b1, 0.99, 1e-3))


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (FedAdam(lr=0.3, beta1=0.5, beta2=0.8, epsilon=0.1), "adam"),
        (FedYogi(lr=0.3, beta1=0.5, beta2=0.8, epsilon=0.1), "yogi"),
        (FedAdagrad(lr=0.3, beta1=0.5, epsilon=0.1), "adagrad"),
    ],
)
def test_adaptive_optimizers_with_other_constants(optimizer: ServerOptimizer, rule: str) -> None:
    assert three_rounds(optimizer) == close(adaptive_path(rule, 0.3, 0.5, 0.8, 0.1))


def test_fedacg_starts_the_clients_ahead_and_lands_on_their_mean() -> None:
    """sent = w + lambda m; m <- lambda m + Delta; w <- sent + Delta, which is w + m."""
    optimizer = FedACG()
    w, m = START, 0.0
    weights, slots = number(START), {}
    for delta in DELTAS:
        sent = w + 0.85 * m
        assert optimizer.outgoing(weights, slots)["w"].item() == close(sent)
        weights, slots = optimizer.step(weights, number(delta), slots)
        m = 0.85 * m + delta
        assert sent + delta == close(w + m)
        w = sent + delta
        assert weights["w"].item() == close(w)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "fedacg"])
def test_all_others_send_the_weights_as_they_are(name: str) -> None:
    optimizer = OPTIMIZERS[name]()
    weights, slots = optimizer.step(number(START), number(0.5), {})
    assert sha256(optimizer.outgoing(weights, slots)) == sha256(weights)


def test_the_defaults_of_momentum() -> None:
    assert FedAvgM() == FedAvgM(momentum=0.9, dampening=0.0)
    assert FedACG() == FedACG(momentum=0.85)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_given_stays_untouched(name: str) -> None:
    optimizer = OPTIMIZERS[name]()
    weights, slots = optimizer.step(number(START), number(0.5), {})
    direction = number(-0.2)
    before = [sha256(each) for each in (weights, slots, direction)]
    optimizer.outgoing(weights, slots)
    optimizer.step(weights, direction, slots)
    assert [sha256(each) for each in (weights, slots, direction)] == before


@pytest.mark.parametrize(
    ("optimizer", "values"),
    [
        (FedAvgM, {"momentum": 1.0}),
        (FedAvgM, {"momentum": -0.1}),
        (FedAvgM, {"dampening": 1.0}),
        (FedACG, {"momentum": 1.0}),
        (FedAdam, {"lr": 0.0}),
        (FedAdam, {"lr": float("inf")}),
        (FedAdam, {"beta1": 1.0}),
        (FedAdam, {"beta2": 1.0}),
        (FedAdam, {"beta2": float("nan")}),
        (FedYogi, {"beta2": -0.5}),
        (FedAdagrad, {"epsilon": 0.0}),
    ],
)
def test_impossible_values_are_refused(
    optimizer: type[ServerOptimizer], values: dict[str, float]
) -> None:
    with pytest.raises(ConfigError, match=rf"server\.{next(iter(values))}"):
        optimizer(**values)


# Through the server: a parameter, two running statistics and a counter


def model(w: float, mean: float, variance: float, count: int) -> dict[str, Tensor]:
    return {
        "w": torch.tensor([w], dtype=torch.float64),
        "running_mean": torch.tensor([mean], dtype=torch.float64),
        "running_var": torch.tensor([variance], dtype=torch.float64),
        "num_batches_tracked": torch.tensor(count),
    }


def server(optimizer: ServerOptimizer) -> Server:
    settings = ServerSettings(optimizer=optimizer)
    return Server(METHODS["fedavg"](), 10, frozenset({"w"}), LocalTraining(), settings)


def replies(broadcast: Broadcast, delta: float, variance: float) -> list[ClientUpdate]:
    """Two clients whose mean moves w by `delta` and has this running variance."""
    sent = broadcast.weights["w"].item()
    round = broadcast.round
    return [
        ClientUpdate(
            k, model(sent + delta + s, s, variance + s / 1000, 7 * round + k), {}, 3, 5, {}
        )
        for k, s in enumerate((-0.25, 0.25))
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_move_parameters_and_nothing_else(name: str) -> None:
    """A variance that falls towards zero would be overshot by momentum and turn negative."""
    optimizer = OPTIMIZERS[name]()
    state = ServerState(0, model(START, 0.0, 1.0, 0), {}, {})
    variances = [0.4, 0.05, 0.001]
    path = []
    for delta, variance in zip(DELTAS, variances, strict=True):
        broadcast = server(optimizer).broadcast(state)
        for buffer in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.equal(broadcast.weights[buffer], state.weights[buffer])
        answers = replies(broadcast, delta, variance)
        state, _ = server(optimizer).aggregate(state, broadcast, answers)
        path.append(state.weights["w"].item())
        assert state.weights["running_var"].item() == pytest.approx(variance, abs=1e-12)
        assert state.weights["running_mean"].item() == pytest.approx(0.0, abs=1e-12)
        assert state.weights["num_batches_tracked"].dtype == torch.int64
        assert state.weights["num_batches_tracked"].item() == 7 * broadcast.round
        assert not any("running" in slot or "tracked" in slot for slot in state.slots)
    assert path == close(three_rounds(optimizer))


def test_the_direction_of_fedacg_is_relative_to_what_was_sent() -> None:
    state = ServerState(4, model(START, 0.0, 1.0, 0), {}, number(2.0))
    broadcast = server(FedACG()).broadcast(state)
    assert broadcast.weights["w"].item() == close(START + 0.85 * 2.0)
    new, _ = server(FedACG()).aggregate(state, broadcast, replies(broadcast, 0.5, 1.0))
    assert new.weights["w"].item() == close(START + 0.85 * 2.0 + 0.5)
    assert new.slots["w"].item() == close(0.85 * 2.0 + 0.5)


def test_a_round_of_float32_weights_stays_float32_with_slots_in_float64() -> None:
    state = ServerState(0, {"w": torch.tensor([1.0])}, {}, {})
    chosen = server(FedAdam())
    reply = ClientUpdate(0, {"w": torch.tensor([1.5])}, {}, 3, 5, {})
    new, _ = chosen.aggregate(state, chosen.broadcast(state), [reply])
    assert new.weights["w"].dtype == torch.float32
    assert new.slots["v/w"].dtype == torch.float64
