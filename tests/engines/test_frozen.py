"""Frozen twins of a model: no number is copied, and nothing of the model itself is touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dcfl.client import Client, frozen, observe
from dcfl.models import FeatureModel, Output
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import MIXED, TRAINING, toy_client, toy_model

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def trained_a_little(seed: int) -> FeatureModel:
    """With running statistics that are not those of the start."""
    model = toy_model(seed=seed).train()
    with torch.no_grad():
        model(IMAGES)
    return model


def client_with(model: FeatureModel, received: dict[str, Tensor]) -> Client:
    return Client(0, 2, model, received, {}, {}, toy_client(MIXED), TRAINING)


def test_the_twins_weights_are_the_tensors_that_were_given() -> None:
    model, weights = trained_a_little(0), snapshot(trained_a_little(1))
    for twin in (frozen(model, weights), client_with(model, weights).frozen(weights)):
        live = twin.state_dict(keep_vars=True)
        assert {n: t.data_ptr() for n, t in live.items()} == {
            n: t.data_ptr() for n, t in weights.items()
        }
        assert not twin.training
        assert not any(parameter.requires_grad for parameter in twin.parameters())


def test_a_twin_answers_as_a_model_that_was_loaded_with_the_weights() -> None:
    model, other = trained_a_little(0), trained_a_little(1)
    twin = frozen(model, snapshot(other))
    with torch.no_grad():
        expected: Output = other.eval()(IMAGES)
        found: Output = twin(IMAGES)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.embedding, expected.embedding)


def test_the_model_itself_is_not_touched() -> None:
    model = trained_a_little(0)
    parameters = list(model.parameters())
    model(IMAGES).logits.sum().backward()
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    before = sha256(model.state_dict())
    given = snapshot(trained_a_little(1))
    was = sha256(given)
    observe(frozen(model, given), IMAGES)
    assert sha256(model.state_dict()) == before
    assert sha256(given) == was
    assert model.training
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert all(p.requires_grad for p in parameters)
    found = [p.grad for p in parameters if p.grad is not None]
    assert len(found) == len(gradients) == len(parameters)
    assert all(torch.equal(a, b) for a, b in zip(found, gradients, strict=True))


def test_training_the_model_does_not_move_its_twin() -> None:
    model = trained_a_little(0)
    client = client_with(model, snapshot(model))
    twin, before = client.global_model, observe(client.global_model, IMAGES)
    assert client.global_model is twin
    model(IMAGES).logits.square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert torch.equal(observe(twin, IMAGES).logits, before.logits)
    assert not torch.equal(model(IMAGES).logits, before.logits)


PARTS: dict[str, Callable[[Output], Tensor]] = {
    "logits": lambda output: output.logits,
    "embedding": lambda output: output.embedding,
    "stages": lambda output: output.stages[-1],
}


@pytest.mark.parametrize("kind", PARTS)
def test_gradients_flow_past_what_was_observed(kind: str) -> None:
    part = PARTS[kind]
    model = trained_a_little(0)
    weights = snapshot(trained_a_little(1))
    twin = frozen(model, weights)
    seen = part(observe(twin, IMAGES))
    assert not seen.requires_grad
    (part(model(IMAGES)) * seen).sum().backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with torch.no_grad():
        constant = part(twin(IMAGES))
    (part(model(IMAGES)) * constant).sum().backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    assert found
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(p.grad is None for p in twin.parameters())
