"""FedETF against its authors' code, and the classifier that nobody trains."""

import pytest
import torch
from torch import nn

from benchmarks.oracles.fedetf import SCALE
from benchmarks.oracles.problem import CLASSES, batch_of, in_the_middle, numbers, our_rounds
from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.methods.zoo.fedetf import FedETF, equiangular_frame
from dcfl.models import MLP, adapt
from dcfl.server.server import ServerSettings
from dcfl.tensors import snapshot
from dcfl.testing.toys import TRAINING, toy_client, two_rounds
from tests.methods.zoo.oracle import DOUBLE, SINGLE, Numbers, error, oracle, require_loss

THEIRS = oracle("fedetf")
FRAME = equiangular_frame(5, CLASSES)


def as_theirs(tensors: Tensors) -> Numbers:
    """The trained scale instead of the classifier that holds it."""
    named = {name: tensor for name, tensor in tensors.items() if "classifier" not in name}
    scale = tensors["classifier.bias"].sum() / CLASSES**0.5
    return numbers({**named, "scaling_train": scale})


def test_the_frame_is_the_authors() -> None:
    ours = FRAME.flatten().tolist()
    assert error({"M": ours}, {"M": THEIRS["frame"]}) <= SINGLE  # theirs is in float32


@pytest.mark.parametrize(("width", "classes"), [(5, 4), (64, 10), (7, 7), (30, 2)])
def test_all_classes_are_at_the_same_angle(width: int, classes: int) -> None:
    frame = equiangular_frame(width, classes)
    cosines = frame.T @ frame
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64)
    torch.testing.assert_close(cosines, expected.fill_diagonal_(1.0), rtol=0, atol=1e-12)


def test_value_and_gradient_are_the_authors() -> None:
    client = in_the_middle()
    loss = FedETF(scale=SCALE).objective(client)(batch_of(0))
    loss.backward()
    own = {name: live.grad for name, live in client.trainable() if live.grad is not None}
    assert "classifier.weight" not in own
    # The derivative by the bias is that by the scale, spread over the classes at the same length.
    require_loss((loss.item(), as_theirs(own)), THEIRS["loss"])


def test_three_rounds_end_where_the_authors_do() -> None:
    settings = ServerSettings(aggregation="samples")
    ours = our_rounds(FedETF(scale=SCALE), THEIRS["cohorts"], settings)
    for own, other in zip(ours, THEIRS["rounds"], strict=True):
        assert error(as_theirs(own), other) <= DOUBLE
        torch.testing.assert_close(own["classifier.weight"], FRAME.T, rtol=0, atol=1e-15)
    scales = [each["scaling_train"][0] for each in THEIRS["rounds"]]
    assert scales[0] != SCALE  # it was trained
    assert len(set(scales)) == 3


def test_the_classifier_is_the_frame_after_every_round_and_its_bias_decides_nothing() -> None:
    rounds = two_rounds(FedETF(), "batch")
    frame = equiangular_frame(128, 4).T.float()
    for weights in (rounds.weights, rounds.second[0].update.weights):
        assert torch.equal(weights["classifier.weight"], frame)
        assert weights["classifier.bias"].std() < 1e-6
        assert float(weights["classifier.bias"].sum() / 2) != 10.0


def test_networks_without_room_for_the_frame_are_refused() -> None:
    def on(model: nn.Module) -> None:
        data = toy_client([0, 1])
        FedETF().objective(Client(0, 1, model, snapshot(model), {}, {}, data, TRAINING))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="at least 4 numbers, one for each class, not 3"):
        on(MLP(64, 4, width=3))
    with pytest.raises(ConfigError, match="called `classifier`"):
        on(adapt(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))))
    with pytest.raises(ConfigError, match="not frozen"):
        on(MLP(64, 4).requires_grad_(False))
