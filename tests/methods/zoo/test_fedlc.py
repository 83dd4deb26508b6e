"""FedLC, which has no released code, against two derivations that share nothing with it."""

import numpy as np
import pytest
import torch

from benchmarks.oracles.problem import LABELS, Tiny, batch_of, in_the_middle, value_and_gradient
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.zoo.fedlc import FedLC
from dcfl.models.output import Output
from tests.methods.zoo.oracle import require_loss

CLIENTS = range(len(LABELS))


@pytest.mark.parametrize("number", CLIENTS)
def test_it_is_a_softmax_with_pairwise_margins(number: int) -> None:
    """log(1 + sum over c != y of exp(f_c - f_y + D(y, c))), D(y, c) = tau (n_y^-1/4 - n_c^-1/4):
    the form of margin losses. A class without images adds nothing to the sum."""
    client, given = in_the_middle(number), batch_of(number)
    counts = {label: LABELS[number].count(label) for label in LABELS[number]}
    expected = 0.0
    for f, label in zip(client.model(given.images).logits, given.labels.tolist(), strict=True):
        others = 0.0
        for c, n in counts.items():
            if c != label:
                margin = 0.7 * (counts[label] ** -0.25 - n**-0.25)
                others = others + torch.exp(f[c] - f[label] + margin)
        expected = expected + torch.log(1 + others)
    parameters = dict(client.model.named_parameters())
    require_loss(
        value_and_gradient(FedLC(tau=0.7).objective(client)(given), parameters),
        value_and_gradient(expected / len(given.labels), parameters),
    )


@pytest.mark.parametrize("number", CLIENTS)
def test_it_is_a_softmax_with_a_prior(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """p_c = r_c e^f_c / sum_k r_k e^f_k with r_c = exp(-tau n_c^-1/4): value and slope in numpy."""
    client, given = in_the_middle(number), batch_of(number)
    logits = client.model(given.images).logits.detach().requires_grad_()
    monkeypatch.setattr(Tiny, "forward", lambda model, images: Output(logits, logits, ()))
    f, labels = logits.detach().numpy(), given.labels.numpy()
    counts = np.bincount(labels, minlength=4)
    rates = np.where(counts, np.exp(-1.3 / np.maximum(counts, 1) ** 0.25), 0.0)
    powers = rates * np.exp(f)
    p = powers / powers.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = FedLC(tau=1.3).objective(client)(given)
    (slope,) = torch.autograd.grad(loss, logits)
    np.testing.assert_allclose(loss.item(), -np.log(p[rows, labels]).mean(), rtol=1e-12)
    np.testing.assert_allclose(slope.numpy(), (p - np.eye(4)[labels]) / len(rows), atol=1e-14)


def test_a_class_without_images_gets_no_gradient() -> None:
    client = in_the_middle(2)  # has classes 0 and 3
    FedLC().objective(client)(batch_of(2)).backward()
    bias = client.model.get_parameter("classifier.bias").grad
    assert bias is not None
    assert not bias[[1, 2]].any()
    assert bias[[0, 3]].all()


def test_equal_counts_leave_the_loss_alone() -> None:
    client, given = in_the_middle(), batch_of(0)
    client.data.images.labels.copy_(torch.tensor([0, 1, 2, 3, 0, 1, 2]))
    client.data = type(client.data)(client.data.images[slice(0, 4)], 4, client.data.preparation)
    plain = FedAvg().objective(client)(given)
    assert FedLC(tau=3.0).objective(client)(given).item() == pytest.approx(plain.item(), abs=1e-12)
