"""FedCM against the released code, and its first round."""

from dataclasses import replace

import pytest
import torch

from benchmarks.oracles.fedcm import CASE
from benchmarks.oracles.fedspeed import LR_DECAY
from benchmarks.oracles.problem import TRAINING, batch_of, in_the_middle, our_rounds
from dcfl.local_training import LocalTraining
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.zoo.fedcm import FedCM
from dcfl.tensors import snapshot
from tests.methods.zoo.oracle import oracle, require_rounds

THEIRS = oracle("fedcm")


def test_four_rounds_with_partial_participation_end_where_the_authors_do() -> None:
    training = replace(TRAINING, lr_decay=LR_DECAY)
    require_rounds(
        our_rounds(FedCM(**CASE), THEIRS["cohorts"], training=training), THEIRS["rounds"]
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_momentum_alone_repeats_the_last_way_of_the_server(momentum: float) -> None:
    """K steps of Delta, whatever K and the momentum of SGD are, go as far as all clients went."""
    training: LocalTraining = replace(TRAINING, epochs=7, momentum=momentum)
    way = {name: torch.ones_like(t) for name, t in snapshot(in_the_middle().model).items()}
    client = replace(in_the_middle(shared=way), training=training)
    objective = FedCM(alpha=1e-12).objective(client)
    gradients = torch.autograd.grad(objective(batch_of(0)), [*client.model.parameters()])
    gone = velocity = 0.0
    for _ in range(7):
        velocity = momentum * velocity + float(gradients[0][0, 0])
        gone += training.lr * velocity
    assert gone == pytest.approx(1.0, rel=1e-6)


def test_the_first_round_has_no_momentum() -> None:
    client = in_the_middle()
    own, plain = (m.objective(client)(batch_of(0)) for m in (FedCM(alpha=0.3), FedAvg()))
    assert own.item() == pytest.approx(0.3 * plain.item())
