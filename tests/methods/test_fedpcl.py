"""FedPCL: -log of one class against the others, prototype set by prototype set."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Client
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.fedpcl import FedPCL
from dcfl.tensors import snapshot
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_model
from tests.methods.cases import LABELS, batch, cosine, require_same

KNOWN = [True, True, False, True]
HELD = [[True, False, False, True], [False, True, False, False], [False] * 4]


def shared(filler: float = 0.5) -> dict[str, Tensor]:
    torch.manual_seed(5)
    vectors = torch.randn(1 + len(HELD), CLASSES, 128, dtype=torch.float64)
    known, held = torch.tensor(KNOWN), torch.tensor(HELD)
    vectors[torch.cat([known[None], held]).logical_not()] = filler
    return {"prototypes": vectors[0], "known": known, "local": vectors[1:], "held": held}


def client(given: dict[str, Tensor]) -> Client:
    network = toy_model().double().train()
    return Client(0, 2, network, snapshot(network), given, {}, toy_client(LABELS), TRAINING)


def term(z: Tensor, label: int, prototypes: dict[int, Tensor], tau: float) -> Tensor:
    """l_i; 0 if the class has no prototype."""
    if label not in prototypes:
        return torch.zeros((), dtype=torch.float64)
    scores = {c: torch.exp(cosine(z, one) / tau) for c, one in prototypes.items()}
    return -torch.log(scores[label] / sum(score for c, score in scores.items() if c != label))


@pytest.mark.parametrize("tau", [0.07, 0.5])
def test_the_loss_and_its_gradient(tau: float) -> None:
    given, who, method = shared(), client(shared()), FedPCL(mu=3.0, temperature=tau)
    loss = method.objective(who)(batch())
    output = who.model(batch().images)
    everybody = {c: given["prototypes"][c] for c in range(CLASSES) if KNOWN[c]}
    owners = [
        {**everybody, **{c: given["local"][p][c] for c in range(CLASSES) if HELD[p][c]}}
        for p in range(len(HELD))
    ]
    contrast = torch.zeros((), dtype=torch.float64)
    for z, label in zip(output.embedding, LABELS, strict=True):
        own = [term(z, label, prototypes, tau) for prototypes in owners]
        contrast = contrast + term(z, label, everybody, tau) + sum(own) / len(own)
    entropy = F.cross_entropy(output.logits, torch.tensor(LABELS))
    expected = entropy + 3.0 * contrast / len(LABELS)
    require_same(loss, expected, who.model)


def test_round_one_is_cross_entropy_alone() -> None:
    who = client({})
    assert FedPCL(mu=9.0).objective(who)(batch()) == FedAvg().objective(who)(batch())


def test_what_stands_in_the_place_of_an_absent_prototype_does_not_matter() -> None:
    losses = [FedPCL().objective(client(shared(filler)))(batch()) for filler in (0.0, 1.0, -50.0)]
    assert losses[0] == losses[1] == losses[2]


def test_merged_prototypes_are_everybodys_mean_and_each_clients_own() -> None:
    def upload(counts: list[int], value: float) -> dict[str, Tensor]:
        n = torch.tensor(counts)
        return {"sums": n[:, None] * torch.full((1, 2), value), "counts": n}

    merged = FedPCL().merge({}, [upload([1, 0, 2], 4.0), upload([3, 0, 0], 8.0)], 100)
    assert merged["prototypes"][:, 0].tolist() == [7.0, 0.0, 4.0]  # (1 * 4 + 3 * 8) / 4
    assert merged["known"].tolist() == [True, False, True]
    assert merged["local"][:, :, 1].tolist() == [[4.0, 0.0, 4.0], [8.0, 0.0, 0.0]]
    assert merged["held"].tolist() == [[True, False, True], [True, False, False]]
    later = FedPCL().merge(merged, [upload([0, 5, 0], 1.0)], 100)
    assert later["prototypes"][:, 0].tolist() == [7.0, 1.0, 4.0]
    assert later["local"].shape == (1, 3, 2)
