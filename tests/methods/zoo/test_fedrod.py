"""FedRoD against its equations, image by image: its authors' repository has no code."""

import torch
from torch import Tensor

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    LR,
    STEPS,
    Tiny,
    batch_of,
    in_the_middle,
    numbers,
    our_rounds,
)
from dcfl.messages import Tensors
from dcfl.methods.personal.fedrod import FedRoD
from dcfl.models.parts import personal_and_rest
from tests.methods.cases import require_same
from tests.methods.zoo.oracle import DOUBLE, error


def balanced(model: Tiny, client: int) -> Tensor:
    batch, held = batch_of(client), LABELS[client]
    logits, total = model(batch.images).logits, torch.zeros(())
    for scores, label in zip(logits, held, strict=True):
        odds = [held.count(c) * scores[c].exp() for c in range(CLASSES)]
        total = total - (odds[label] / sum(odds)).log()
    return total / len(held)


def test_the_shared_loss_is_the_balanced_softmax() -> None:
    client = in_the_middle(1)
    ours = FedRoD().objective(client)(batch_of(1))
    require_same(ours, balanced(client.model, 1), client.model)  # type: ignore[arg-type]


def test_two_visits_are_those_of_the_equations() -> None:
    """By hand: w by the balanced loss, then v on the features of the stepped model."""
    memories: dict[int, Tensors] = {}
    ours = our_rounds(FedRoD(), [[0], [0]], memories=memories)
    model, v = Tiny(), torch.zeros(CLASSES, 6, dtype=torch.float64)  # the last column: the bias
    images, labels = batch_of(0).images, batch_of(0).labels
    for _ in range(2 * STEPS):
        model.zero_grad()
        balanced(model, 0).backward()
        with torch.no_grad():
            for live in model.parameters():
                live -= LR * live.grad
            shared = model(images)
            z = torch.cat([shared.embedding, torch.ones(len(labels), 1)], dim=1)
            wrong = (shared.logits + z @ v.T).softmax(dim=1) - torch.eye(CLASSES)[labels]
            v -= LR * wrong.T @ z / len(labels)
    assert error(numbers(ours[-1]), numbers(model.state_dict())) <= DOUBLE
    with torch.no_grad():
        model.classifier.weight += v[:, :5]
        model.classifier.bias += v[:, 5]
    own, kept = personal_and_rest(memories[0])
    assert error(numbers(own), numbers(model.state_dict())) <= DOUBLE
    assert error(numbers(own), numbers(ours[-1])) > 0.05
    assert error(numbers(kept), numbers({"weight": v[:, :5], "bias": v[:, 5]})) <= DOUBLE
