"""How replies become one direction: each rule against its formula on one number."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate
from dcfl.server.aggregation import Aggregation, fold_for
from dcfl.server.robust import Defence, Folded

SENT = {
    "w": torch.tensor([1.0, -2.0], dtype=torch.float64),
    "running_mean": torch.zeros(1, dtype=torch.float64),
    "num_batches_tracked": torch.tensor(0),
}
PLAIN, MOMENTUM = LocalTraining(momentum=0.0), LocalTraining(momentum=0.9)


def reply(
    client: int, w: float, examples: int = 1, steps: int = 1, mean: float = 0.0
) -> ClientUpdate:
    weights = {
        "w": torch.tensor([w, -2.0 * w], dtype=torch.float64),
        "running_mean": torch.tensor([mean], dtype=torch.float64),
        "num_batches_tracked": torch.tensor(steps),
    }
    return ClientUpdate(client, weights, {}, examples, steps, {})


def fold(rule: str, replies: list[ClientUpdate], training: LocalTraining = PLAIN) -> Folded:
    folded = fold_for(rule, frozenset({"w"}), training, Defence())  # type: ignore[arg-type]
    for each in replies:
        folded.add(each)
    return folded.finish(SENT)


def direction(
    rule: str, replies: list[ClientUpdate], training: LocalTraining = PLAIN
) -> list[float]:
    result: Tensor = fold(rule, replies, training).direction["w"]
    return result.tolist()


def effective(steps: int, momentum: float, epochs: int = 1, decay: float = 1.0) -> float:
    """How far a momentum SGD gets with lr 1 and a constant gradient of 1, step by step; the rate
    falls by `decay` after each epoch."""
    position = velocity = 0.0
    for epoch in range(epochs):
        for _ in range(steps // epochs):
            velocity = momentum * velocity + 1.0
            position += decay**epoch * velocity
    return position


def fednova(
    replies: list[ClientUpdate], momentum: float, epochs: int = 1, decay: float = 1.0
) -> list[float]:
    """tau_eff * sum_i p_i Delta_i / a_i with tau_eff = sum_i p_i a_i, number by number.

    A client without a step has moved nowhere, so it adds nothing to either sum.
    """
    total = sum(each.num_examples for each in replies)
    tau_eff, sums = 0.0, [0.0, 0.0]
    for each in replies:
        p, a = each.num_examples / total, effective(each.num_steps, momentum, epochs, decay)
        tau_eff += p * a
        for k in range(2):
            delta = each.weights["w"][k].item() - SENT["w"][k].item()
            sums[k] += p * delta / a if a else 0.0
    return [tau_eff * each for each in sums]


THREE = [
    reply(0, 2.0, examples=10, steps=3, mean=1.0),
    reply(1, 5.0, examples=30, steps=8, mean=2.0),
    reply(2, -1.0, examples=60, steps=1, mean=6.0),
]


def test_fednova_with_plain_sgd_counts_steps() -> None:
    tau_eff = 0.1 * 3 + 0.3 * 8 + 0.6 * 1
    rate = 0.1 * 1.0 / 3 + 0.3 * 4.0 / 8 + 0.6 * -2.0 / 1
    assert direction("fednova", THREE) == pytest.approx([tau_eff * rate, -2.0 * tau_eff * rate])


@pytest.mark.parametrize("training", [PLAIN, MOMENTUM])
def test_fednova_is_samples_when_all_take_the_same_number_of_steps(training: LocalTraining) -> None:
    replies = [reply(0, 2.0, 10, 7), reply(1, 5.0, 30, 7), reply(2, -1.0, 60, 7)]
    assert direction("fednova", replies, training) == pytest.approx(direction("samples", replies))


CLIENTS = st.lists(
    st.tuples(st.floats(-10, 10), st.integers(1, 5000), st.integers(1, 200)), min_size=1, max_size=6
)


@settings(max_examples=100, deadline=None)
@given(clients=CLIENTS, momentum=st.sampled_from([0.0, 0.3, 0.9, 0.99]))
def test_fednova_is_its_formula(clients: list[tuple[float, int, int]], momentum: float) -> None:
    replies = [reply(k, w, n, steps) for k, (w, n, steps) in enumerate(clients)]
    ours = direction("fednova", replies, LocalTraining(momentum=momentum))
    assert ours == pytest.approx(fednova(replies, momentum), rel=1e-8, abs=1e-8)


@settings(max_examples=100, deadline=None)
@given(
    clients=CLIENTS,
    momentum=st.sampled_from([0.0, 0.3, 0.9]),
    epochs=st.integers(1, 7),
    decay=st.floats(0.1, 1.0),
)
def test_fednova_weighs_each_step_with_its_own_rate(
    clients: list[tuple[float, int, int]], momentum: float, epochs: int, decay: float
) -> None:
    replies = [reply(k, w, n, steps * epochs) for k, (w, n, steps) in enumerate(clients)]
    training = LocalTraining(
        epochs=epochs, momentum=momentum, lr_decay=decay, lr_decay_per="round+epoch"
    )
    expected = fednova(replies, momentum, epochs, decay)
    assert direction("fednova", replies, training) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(clients=CLIENTS, data=st.data(), rule=st.sampled_from(get_args(Aggregation)))
def test_the_order_of_the_replies_does_not_matter_beyond_rounding(
    clients: list[tuple[float, int, int]], data: st.DataObject, rule: str
) -> None:
    replies = [reply(k, w, n, steps, mean=w) for k, (w, n, steps) in enumerate(clients)]
    shuffled = data.draw(st.permutations(replies))
    one, other = fold(rule, replies, MOMENTUM), fold(rule, shuffled, MOMENTUM)
    torch.testing.assert_close(one.direction, other.direction, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        one.buffers["running_mean"], other.buffers["running_mean"], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("training", [PLAIN, MOMENTUM])
def test_a_client_without_steps_adds_no_effective_steps_to_fednova(training: LocalTraining) -> None:
    """a_i = 0 in tau_eff = sum_i p_i a_i; its own change, which is zero, drops out."""
    replies = [*THREE, reply(3, 1.0, examples=100, steps=0)]
    expected = fednova(replies, training.momentum)
    assert direction("fednova", replies, training) == pytest.approx(expected)
    assert direction("fednova", [replies[-1]] * 2, training) == [0.0, 0.0]


@pytest.mark.parametrize(("rule", "mean"), [("uniform", 3.0), ("samples", 4.3), ("fednova", 4.3)])
def test_float_buffers_are_averaged_with_the_clients_shares(rule: str, mean: float) -> None:
    buffers = fold(rule, THREE, MOMENTUM).buffers
    assert set(buffers) == {"running_mean", "num_batches_tracked"}
    assert buffers["running_mean"].tolist() == pytest.approx([mean])


@pytest.mark.parametrize("rule", get_args(Aggregation))
def test_integer_buffers_are_copied(rule: str) -> None:
    counter = fold(rule, THREE).buffers["num_batches_tracked"]
    assert counter.dtype == torch.int64
    assert counter.item() == 3


@pytest.mark.parametrize("rule", get_args(Aggregation))
def test_replies_are_not_changed_by_being_folded(rule: str) -> None:
    replies = [reply(0, 2.0, 10, 3), reply(1, 5.0, 30, 8)]
    fold(rule, replies)
    assert [each.weights["w"].tolist() for each in replies] == [[2.0, -4.0], [5.0, -10.0]]
    assert SENT["w"].tolist() == [1.0, -2.0]


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 40, 500])
def test_effective_steps_are_those_of_momentum_sgd_with_a_constant_gradient(
    momentum: float, steps: int
) -> None:
    ours = LocalTraining(momentum=momentum).effective_steps(steps)
    assert ours == pytest.approx(effective(steps, momentum), rel=1e-9, abs=1e-9)


def test_effective_steps_with_a_rate_per_epoch_are_those_of_torchs_schedule() -> None:
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)
    for _ in range(3):
        for _ in range(4):
            w.grad = torch.ones_like(w)
            optimizer.step()
        schedule.step()
    training = LocalTraining(3, lr=0.5, lr_decay=0.7, lr_decay_per="round+epoch", momentum=0.9)
    assert -w.item() / 0.5 == pytest.approx(training.effective_steps(12))


@pytest.mark.parametrize("steps", [1, 5, 2**39 + 1])
def test_a_number_of_steps_that_no_client_takes_is_answered_at_once(steps: int) -> None:
    """Replies are not to be trusted: neither a part of an epoch nor a huge number may hurt."""
    training = LocalTraining(3, lr_decay=0.5, lr_decay_per="round+epoch", momentum=0.9)
    one, more = (training.effective_steps(count) for count in (steps, 2 * steps))
    assert 0 < one < more < 20 * steps
