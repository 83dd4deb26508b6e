"""Per-FedAvg against its peers' code: pFedMe's authors have it beside their own method."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.oracles.problem import (
    LABELS,
    STEPS,
    TRAINING,
    Tiny,
    batch_of,
    in_the_middle,
    numbers,
    our_rounds,
)
from dcfl.messages import Tensors
from dcfl.methods.personal.per_fedavg import PerFedAvg
from dcfl.models.parts import personal_and_rest
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("per-fedavg")
METHOD = PerFedAvg(alpha=THEIRS["lr"])


@pytest.mark.parametrize("holder", [k for k, held in enumerate(LABELS) if len(held) >= 4])
def test_three_steps_end_where_theirs_do(holder: int) -> None:
    client = in_the_middle(holder)
    client.model.load_state_dict(Tiny(0).state_dict())
    for _ in range(STEPS):
        client.model.zero_grad()
        METHOD.gradient(client, METHOD.objective(client), batch_of(holder))
        with torch.no_grad():
            for live in client.model.parameters():
                live -= TRAINING.lr * live.grad
    assert error(numbers(client.model.state_dict()), THEIRS["weights"][holder]) <= DOUBLE
    assert error(numbers(Tiny(0).state_dict()), THEIRS["weights"][holder]) > 0.05


def test_the_own_model_is_a_step_further_on_all_images() -> None:
    memories: dict[int, Tensors] = {}
    (trained,) = our_rounds(METHOD, [[1]], memories=memories)
    model, batch = Tiny(), batch_of(1)
    model.load_state_dict(trained)
    F.cross_entropy(model(batch.images).logits, batch.labels).backward()
    expected = {n: live - METHOD.alpha * live.grad for n, live in model.named_parameters()}
    assert error(numbers(personal_and_rest(memories[1])[0]), numbers(expected)) <= DOUBLE
    assert error(numbers(trained), numbers(expected)) > 0.001
