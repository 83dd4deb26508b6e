"""FedSAM and FedASAM against their authors' code, and what a step must undo."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.oracles.problem import batch_of, in_the_middle, numbers, our_rounds
from dcfl.methods import METHODS
from dcfl.methods.fedavg import FedAvg
from dcfl.server.server import ServerSettings
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import MIXED, TRAINING, toy_client, visit
from tests.methods.zoo.oracle import SINGLE, oracle, require_loss, require_rounds

NAMES = ("fedsam", "fedasam")


def method_and_oracle(name: str) -> tuple[Any, dict[str, Any]]:
    theirs = oracle(name)
    return METHODS[name](**theirs["cases"][0]), theirs


@pytest.mark.parametrize("name", NAMES)
def test_the_step_is_the_authors(name: str) -> None:
    """The reported loss is that at w, the gradient that at w + e."""
    method, theirs = method_and_oracle(name)
    client = in_the_middle()
    before = snapshot(client.model)
    loss = method.gradient(client, method.objective(client), batch_of(0))
    gradient = {key: live.grad for key, live in client.model.named_parameters()}
    require_loss((loss.item(), numbers(gradient)), theirs["losses"][0])
    assert sha256(snapshot(client.model)) == sha256(before)


@pytest.mark.parametrize("name", NAMES)
def test_three_rounds_end_where_the_authors_do(name: str) -> None:
    method, theirs = method_and_oracle(name)
    ours = our_rounds(method, theirs["cohorts"], ServerSettings(aggregation="samples"))
    require_rounds(ours, theirs["rounds"], SINGLE)  # their server averages in float32


def test_asam_does_not_see_how_layers_share_their_scale() -> None:
    """Without eta and biases, e / w is the same after one layer is scaled up and the next down."""
    method = METHODS["fedasam"](rho=0.5, eta=0.0)
    weight, slope = torch.randn(3, 4), torch.randn(3, 4)
    ours = method.scale("body.weight", weight) ** 2 * slope / weight
    scaled = method.scale("body.weight", 8 * weight) ** 2 * (slope / 8) / (8 * weight)
    torch.testing.assert_close(ours, scaled)
    assert method.scale("body.bias", weight) == 1


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_are_fedavgs_at_the_same_weights(name: str) -> None:
    """After one step from the same weights they saw the same batch once, unperturbed."""
    training = replace(TRAINING, epochs=1, batch_size=64)
    ours = visit(METHODS[name](), toy_client(MIXED), training=training).update.weights
    plain = visit(FedAvg(), toy_client(MIXED), training=training).update.weights
    moved = [key for key in ours if not torch.equal(ours[key], plain[key])]
    assert moved
    assert not any("running" in key or "tracked" in key for key in moved)
