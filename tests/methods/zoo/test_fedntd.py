"""FedNTD against its authors' code, and at the edges that it does not reach."""

import pytest
import torch

from benchmarks.oracles.problem import batch_of, in_the_middle, our_rounds, value_and_gradient
from dcfl.client import Batch
from dcfl.methods.zoo.fedntd import FedNTD
from dcfl.server.server import ServerSettings
from tests.methods.zoo.oracle import oracle, require_loss, require_rounds

THEIRS = oracle("fedntd")


@pytest.mark.parametrize("case", range(len(THEIRS["cases"])))
def test_value_and_gradient_are_the_authors(case: int) -> None:
    client = in_the_middle()
    loss = FedNTD(**THEIRS["cases"][case]).objective(client)(batch_of(0))
    ours = value_and_gradient(loss, dict(client.model.named_parameters()))
    require_loss(ours, THEIRS["losses"][case])


def test_three_rounds_end_where_the_authors_do() -> None:
    ours = our_rounds(
        FedNTD(**THEIRS["cases"][1]), THEIRS["cohorts"], ServerSettings(aggregation="samples")
    )
    require_rounds(ours, THEIRS["rounds"], precision=1e-7)  # its shares n_k / n are in float32


def test_the_true_class_has_no_part_in_the_distillation() -> None:
    """Two models that differ only in the logit of the true class agree about all others."""
    method, labels = FedNTD(), torch.tensor([0, 2])
    received = torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])
    local = received.clone()
    local[0, 0], local[1, 2] = -7.0, 30.0
    assert method._not_true_distance(received, local, labels) == pytest.approx(0.0, abs=1e-6)
    local[0, 1] += 1
    assert method._not_true_distance(received, local, labels) > 0.05


def test_with_two_classes_there_is_nothing_to_distil() -> None:
    local = torch.randn(5, 2, requires_grad=True)
    labels = torch.tensor([0, 1, 1, 0, 1])
    distance = FedNTD()._not_true_distance(torch.randn(5, 2), local, labels)
    (gradient,) = torch.autograd.grad(distance, local)
    assert distance == 0
    assert not gradient.any()


def test_the_received_model_is_at_distance_zero() -> None:
    client = in_the_middle()
    client.model.load_state_dict(client.received)
    given: Batch = batch_of(0)
    with_term, without = (
        FedNTD(mu=5.0).objective(client)(given),
        FedNTD(mu=0.0).objective(client)(given),
    )
    assert with_term.item() == pytest.approx(without.item(), abs=1e-12)
