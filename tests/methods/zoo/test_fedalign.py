"""FedAlign against its authors' code, and at the edges that it does not reach."""

import pytest
import torch
from torch import nn

from benchmarks.oracles.fedalign import (
    EPOCHS,
    LR,
    MU,
    WIDTH,
    batches,
    maps,
    network,
    sampled,
)
from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.methods.zoo.fedalign import FedAlign, largest_singular_value
from dcfl.models import MLP, FeatureModel, LeNet, ResNet18, adapt
from dcfl.models.parts import freeze
from dcfl.tensors import snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("fedalign")


def client_with(model: FeatureModel) -> Client:
    return Client(0, 1, model.train(), snapshot(model), {}, {}, toy_client([0, 1]), TRAINING)


def step(method: FedAlign, client: Client, batch: Batch) -> list[torch.Tensor]:
    client.model.zero_grad()
    method.gradient(client, method.objective(client), batch)
    return [live.grad for live in client.model.parameters() if live.grad is not None]


def test_singular_values_are_the_authors() -> None:
    ours = largest_singular_value(*maps())
    assert ours.tolist() == pytest.approx(THEIRS["singular_values"], rel=1e-12)
    # Ten iterations are near the truth, which torch computes in another way.
    entering, leaving = maps()
    small = torch.nn.functional.adaptive_avg_pool2d(entering, (3, 3)).flatten(2)
    exact = torch.linalg.matrix_norm(small @ leaving.flatten(2).mT / 9, ord=2)
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=0)


def test_four_steps_on_a_residual_network_are_the_authors() -> None:
    client, method = client_with(network()), FedAlign(mu=MU, width=WIDTH)
    ours = []
    for _ in range(EPOCHS):
        for images, labels in batches():
            gradients = step(method, client, Batch(images, labels))
            ours.append(sampled(gradients))
            with torch.no_grad():
                for live, gradient in zip(client.model.parameters(), gradients, strict=True):
                    live -= LR * gradient
    for own, other in zip(ours, THEIRS["gradients"], strict=True):
        assert error({"g": own}, {"g": other}) <= DOUBLE
    reached = {"w": sampled(client.model.parameters())}
    assert error(reached, {"w": THEIRS["weights"]}) <= DOUBLE
    # The term is a good part of the gradient, and only the last block's.
    first = Batch(*batches()[0])
    plain, whole = (step(FedAlign(mu=mu), client_with(network()), first) for mu in (0.0, MU))
    changed = [not torch.equal(a, b) for a, b in zip(plain, whole, strict=True)]
    names = [name for name, _ in network().named_parameters()]
    last = [name.startswith("stages.2.") for name in names]
    assert changed == last


@pytest.mark.parametrize(
    "model",
    [
        ResNet18(channels=3, size=8, classes=4, width=8),
        LeNet(channels=3, size=16, classes=4),
        adapt(nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), nn.Flatten(), nn.Linear(324, 4)), "3"),
    ],
    ids=["resnet18", "lenet", "adapted"],
)
def test_networks_that_say_which_block_is_their_last(model: FeatureModel) -> None:
    size = 16 if isinstance(model, LeNet) else 8
    images = torch.randn(5, 3, size, size)
    model(images)
    batch = Batch(images, torch.tensor([0, 1, 2, 3, 0]))
    if not model.last_block:
        with pytest.raises(ConfigError, match="set `last_block`"):
            step(FedAlign(), client_with(model), batch)
        model.last_block = ("0",)
    gradients = step(FedAlign(), client_with(model), batch)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_other_networks_are_refused() -> None:
    batch = Batch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ConfigError, match="does not say which one that is"):
        step(FedAlign(), client_with(MLP(64, 4)), batch)


def test_a_frozen_last_block_has_nothing_to_learn() -> None:
    model = toy_model()
    freeze(model, ["convolutions.2", "norms.2"])
    batch = Batch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
    plain, whole = (step(FedAlign(mu=mu), client_with(model), batch) for mu in (0.0, 1.0))
    assert all(torch.equal(a, b) for a, b in zip(plain, whole, strict=True))


def test_a_dead_network_stays_finite() -> None:
    model = toy_model()
    nn.init.zeros_(model.get_parameter("norms.2.weight"))
    batch = Batch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
    assert all(
        gradient.isfinite().all() for gradient in step(FedAlign(), client_with(model), batch)
    )
