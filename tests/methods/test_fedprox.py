"""FedProx against L_CE + (mu/2) ||w - w_received||^2 written as a sum over single parameters."""

import copy

import pytest
import torch
import torch.nn.functional as F

from dcfl.client import Client
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.fedprox import FedProx
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model, visit
from tests.methods.cases import EXACT, LABELS, batch, require_same


def client(moved: float = 0.05) -> Client:
    """In the middle of a round: every parameter, and every statistic, is no longer as received."""
    network = toy_model().double().train()
    received = snapshot(network)
    torch.manual_seed(3)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(moved * torch.rand_like(tensor))
    return Client(0, 2, network, received, {}, {}, toy_client(LABELS), TRAINING)


def small_client() -> Client:
    """Only the classifier learns: few enough numbers for a loop over each of them."""
    who = client()
    for name, live in who.model.named_parameters():
        live.requires_grad_(name.startswith("classifier."))
        if not live.requires_grad:
            with torch.no_grad():
                live.copy_(who.received[name])
    return who


def test_value_and_gradient_are_those_of_the_formula() -> None:
    who, given = small_client(), batch()
    [live for _, live in who.trainable()]
    loss = FedProx(mu=3.0).objective(who)(given)
    expected = F.cross_entropy(who.model(given.images).logits, given.labels)
    for name, live in who.trainable():
        for w, w_received in zip(live.flatten(), who.received[name].flatten(), strict=True):
            expected = expected + 3.0 / 2 * (w - w_received) ** 2
    require_same(loss, expected, who.model)


def test_the_gradient_of_the_term_is_mu_times_the_distance_in_every_parameter() -> None:
    """Half the square, so no factor 2 is left: the cheap form that adds mu (w - w_g)."""
    who, given = client(), batch()
    names, parameters = zip(*who.trainable(), strict=True)
    with_term = torch.autograd.grad(FedProx(mu=0.7).objective(who)(given), parameters)
    without = torch.autograd.grad(FedAvg().objective(who)(given), parameters)
    for name, live, ours, plain in zip(names, parameters, with_term, without, strict=True):
        by_hand = plain + 0.7 * (live.detach() - who.received[name])
        torch.testing.assert_close(ours, by_hand, **EXACT)


def test_buffers_are_not_pulled() -> None:
    who, given = client(), batch()
    before = FedProx(mu=1.0).objective(who)(given).item()
    for buffer in who.model.buffers():
        buffer.add_(5)  # training mode: the prediction does not depend on running statistics
    assert FedProx(mu=1.0).objective(who)(given).item() == before


def test_frozen_parameters_are_not_pulled() -> None:
    who, given = client(), batch()
    who.model.get_parameter("classifier.bias").requires_grad_(False)
    before = FedProx(mu=1.0).objective(who)(given).item()
    who.received = {**who.received, "classifier.bias": who.received["classifier.bias"] + 5}
    assert FedProx(mu=1.0).objective(who)(given).item() == before


def test_the_term_is_zero_at_the_received_weights_and_not_after_a_step() -> None:
    who, given = client(moved=0.0), batch()
    proximal, plain = FedProx(mu=10.0).objective(who), FedAvg().objective(who)
    assert proximal(given).item() == plain(given).item()
    plain(given).backward()
    torch.optim.SGD(who.model.parameters(), lr=0.1).step()
    squares = sum(
        float(((live - who.received[name]) ** 2).sum().detach()) for name, live in who.trainable()
    )
    assert squares > 1e-4
    assert proximal(given).item() - plain(given).item() == pytest.approx(5 * squares, abs=1e-9)


def test_a_round_pulls_to_what_was_received_and_decays_weights_beside_it() -> None:
    """w <- w - lr (g + mu (w - w_received) + decay w) over the steps of a real round."""
    training = LocalTraining(1, 4, lr=0.05, momentum=0.0, weight_decay=0.01, max_grad_norm=0.0)
    data, mu = toy_client(LABELS + LABELS[:5]), 2.0
    network = toy_model().train()
    start = copy.deepcopy(network)
    batches = list(data.training_batches(1, 4, seed=0, round=1, client=0, second_view=False))
    assert len(batches) == 3
    for each in batches:
        loss = F.cross_entropy(network(each.images).logits, each.labels)
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for w, w0, g in zip(network.parameters(), start.parameters(), gradients, strict=True):
                w -= 0.05 * (g + mu * (w - w0) + 0.01 * w)
    update = visit(FedProx(mu=mu), data, training=training).update
    torch.testing.assert_close(dict(update.weights), snapshot(network), rtol=1e-5, atol=1e-6)


def test_the_received_weights_are_no_references_to_the_live_ones() -> None:
    """In FedDecorr's port they are, so that its term is identically zero."""
    weights = snapshot(toy_model())
    before = sha256(weights)
    ours, plain = (
        visit(method, toy_client(LABELS), received=Broadcast(1, weights, {})).update.weights
        for method in (FedProx(mu=1.0), FedAvg())
    )
    assert sha256(weights) == before
    assert sha256(ours) != sha256(plain)
