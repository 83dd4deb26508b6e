"""FedSCL: SupCon over the batch, anchor by anchor."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.fedscl import FedSCL
from dcfl.tensors import snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model
from tests.methods.cases import LABELS, batch, cosine, require_same


def client() -> Client:
    network = toy_model().double().train()
    return Client(0, 2, network, snapshot(network), {}, {}, toy_client(LABELS), TRAINING)


def contrast(z: Tensor, y: list[int], tau: float, reduction: str) -> Tensor:
    """mean over all anchors of -sum (or mean) over P_i of [s_ip - log sum_{k != i} exp(s_ik)]."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(y)):
        others = [j for j in range(len(y)) if j != i]
        s = {j: cosine(z[i], z[j]) / tau for j in others}
        denominator = sum(torch.exp(s[k]) for k in others)  # positives included
        positives = [j for j in others if y[j] == y[i]]
        for p in positives:
            share = len(positives) if reduction == "mean" else 1
            total = total - torch.log(torch.exp(s[p]) / denominator) / share
    return total / len(y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("tau", [0.5, 0.07])
@pytest.mark.parametrize("labels", [LABELS, [1] * 5, [0, 0]])
def test_value_and_gradient_are_those_of_equation_3(
    reduction: str, tau: float, labels: list[int]
) -> None:
    who, given = client(), batch(labels)
    list(who.model.parameters())
    method = FedSCL(mu=0.7, temperature=tau, reduction=reduction)  # type: ignore[arg-type]
    loss = method.objective(who)(given)
    output = who.model(given.images)
    expected = F.cross_entropy(output.logits, given.labels)
    expected = expected + 0.7 * contrast(output.embedding, labels, tau, reduction)
    require_same(loss, expected, who.model)


def test_a_batch_without_positives_is_cross_entropy() -> None:
    who, given = client(), batch([0, 1, 2, 3])
    assert FedSCL(mu=9.0).objective(who)(given).item() == FedAvg().objective(who)(given).item()


def test_the_temperature_does_not_scale_the_loss_in_secret() -> None:
    """Two samples of one class: the only candidate is the positive, so the loss is 0 at any tau.
    Equal embeddings: log of the number of the others, with no tau / 0.07 before it."""
    images = batch([1] * 5).images[:1].expand(5, -1, -1, -1)
    who, given = client(), Batch(images, torch.tensor([1] * 5))
    part = FedSCL().objective(who)(given) - FedAvg().objective(who)(given)
    assert part.item() == pytest.approx(torch.tensor(4.0).double().log().item(), abs=1e-9)


def test_the_defaults_are_one_mean_and_one_half() -> None:
    assert FedSCL() == FedSCL(mu=1.0, temperature=0.5, reduction="mean")
