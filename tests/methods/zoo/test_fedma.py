"""FedMA against its authors' matching, and on networks whose neurons were put in another order."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.oracles.fedma import CLIENTS, SIGMA, SIGMA0, rows
from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.methods.zoo.fedma import FedMA, layers_of, reorder
from dcfl.models import CNN, MLP, FeatureModel, LeNet, ResNet8, adapt
from dcfl.server import ServerState
from dcfl.tensors import snapshot
from dcfl.testing.toys import MIXED, TRAINING, toy_client, toy_model, toy_server, visit
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("fedma")


@pytest.mark.parametrize("case", THEIRS["cases"], ids=lambda c: f"{c['noise']}, {c['sweeps']}")
def test_orders_and_means_are_the_authors(case: dict[str, Any]) -> None:
    ours = rows(case["noise"])
    orders = FedMA(sweeps=case["sweeps"]).matched(ours)
    assert [order.tolist() for order in orders] == case["orders"]
    mean = sum(own[order] for own, order in zip(ours, orders, strict=True)) / CLIENTS
    # Their estimate shrinks the mean towards 0, by a prior that we do not have.
    shrunk = mean * CLIENTS / (CLIENTS + SIGMA / SIGMA0)
    assert error({"w": shrunk.flatten().tolist()}, {"w": case["estimate"]}) <= DOUBLE


def shuffled(model: FeatureModel, seed: int) -> dict[str, torch.Tensor]:
    weights = snapshot(model)
    names = [name for name, _ in model.named_parameters()]
    torch.manual_seed(seed)
    for layer, following in pairwise(layers_of({name: weights[name] for name in names})):
        reorder(weights, layer, following, torch.randperm(len(weights[layer.weight])))
    return weights


def test_clients_that_differ_in_order_alone_are_averaged_to_the_same_network() -> None:
    """Running statistics included."""
    update = visit(FedMA(own_start=False), toy_client(MIXED)).update
    model = toy_model().eval()
    model.load_state_dict(update.weights)
    images = torch.randn(5, 1, 8, 8)
    before = model(images).logits
    updates = [replace(update, client=k, weights=shuffled(model, k)) for k in range(3)]
    server = toy_server(FedMA(), model, 3)
    state = ServerState(0, snapshot(toy_model()), {}, {})
    state, _ = server.aggregate(state, server.broadcast(state), updates)
    assert not torch.equal(
        state.weights["norms.0.running_mean"], update.weights["norms.0.running_mean"]
    )
    model.load_state_dict(state.weights)
    torch.testing.assert_close(model(images).logits, before, rtol=1e-4, atol=1e-4)


def on(model: FeatureModel, size: int = 8, channels: int = 1) -> None:
    data = toy_client([0, 1])
    if size != 8:
        data.images = replace(data.images, pixels=data.images.pixels.repeat(1, 2, 2, 1))
    FedMA().objective(Client(0, 1, model, snapshot(model), {}, {}, data, TRAINING))


@pytest.mark.parametrize(
    "model",
    [
        CNN(1, 8, 4),
        CNN(1, 8, 4, head="mlp16"),
        CNN(1, 8, 4, norm="batch-nostats").eval(),
        MLP(64, 4, width=10),
        adapt(nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))),
    ],
    ids=["cnn", "head", "without statistics", "mlp", "adapted"],
)
def test_networks_with_layers_in_a_row_are_taken(model: FeatureModel) -> None:
    before = snapshot(model)
    on(model)
    assert any(not torch.equal(live, before[name]) for name, live in model.named_parameters())


@pytest.mark.parametrize(
    "model",
    [ResNet8(1, 8, 4), CNN(1, 8, 4, norm="group"), CNN(1, 8, 4, head="side16")],
    ids=["shortcuts", "groups", "two outputs"],
)
def test_others_are_refused_in_one_line(model: FeatureModel) -> None:
    with pytest.raises(ConfigError, match="fedma cannot match the neurons of this network"):
        on(model)


def test_the_images_of_a_channel_stay_together_where_maps_become_vectors() -> None:
    model = LeNet(1, 16, 4).eval()
    images = torch.randn(3, 1, 16, 16)
    before = model(images).logits
    model.load_state_dict(shuffled(model, 1))
    torch.testing.assert_close(model(images).logits, before, rtol=1e-4, atol=1e-5)
