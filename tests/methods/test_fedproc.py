"""FedProc: -log softmax over the known prototypes, anchor by anchor, and its two schedules."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.fedproc import FedProc
from dcfl.tensors import snapshot
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_model
from tests.methods.cases import LABELS, batch, cosine, require_same

KNOWN = [True, True, False, True]


def vectors() -> Tensor:
    torch.manual_seed(5)
    return torch.randn(CLASSES, 128, dtype=torch.float64)


def client(prototypes: Tensor | None = None, round: int = 2) -> Client:
    network = toy_model().double().train()
    shared = {} if prototypes is None else {"prototypes": prototypes, "known": torch.tensor(KNOWN)}
    return Client(0, round, network, snapshot(network), shared, {}, toy_client(LABELS), TRAINING)


def parts(who: Client, given: Batch, tau: float) -> tuple[Tensor, Tensor]:
    """L_CE and the mean over all anchors of l_i; an anchor without its prototype gives 0."""
    output = who.model(given.images)
    prototypes = who.shared["prototypes"]
    losses = [torch.zeros((), dtype=torch.float64)]
    for z, label in zip(output.embedding, given.labels.tolist(), strict=True):
        if KNOWN[label]:
            scores = {
                c: torch.exp(cosine(z, prototypes[c]) / tau) for c in range(CLASSES) if KNOWN[c]
            }
            losses.append(-torch.log(scores[label] / sum(scores.values())))
    return F.cross_entropy(output.logits, given.labels), sum(losses) / len(given.labels)


def check(method: FedProc, round: int, weights: tuple[float, float]) -> None:
    who, given = client(vectors(), round), batch()
    loss = method.objective(who)(given)
    entropy, contrast = parts(who, given, method.temperature)
    expected = weights[0] * entropy + weights[1] * contrast
    require_same(loss, expected, who.model)


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("round", [2, 90])
def test_fixed_is_cross_entropy_and_mu_times_the_contrast(tau: float, round: int) -> None:
    check(FedProc(mu=10.0, temperature=tau), round, (1.0, 10.0))


@pytest.mark.parametrize(
    ("round", "ramp", "alpha"),
    [(2, 100, 0.01), (51, 100, 0.5), (101, 100, 1.0), (500, 100, 1.0), (4, 10, 0.3)],
)
def test_published_moves_from_the_contrast_to_cross_entropy(
    round: int, ramp: int, alpha: float
) -> None:
    """alpha = t / 100 capped at 1 with t = 0 in round one; mu has no say."""
    method = FedProc(mu=123.0, temperature=1.0, schedule="published", ramp=ramp)
    check(method, round, (alpha, 1 - alpha))


@pytest.mark.parametrize("schedule", ["fixed", "published"])
def test_round_one_is_cross_entropy_alone(schedule: str) -> None:
    who, given = client(round=1), batch()
    loss = FedProc(mu=10.0, schedule=schedule).objective(who)(given)  # type: ignore[arg-type]
    assert loss.item() == FedAvg().objective(who)(given).item()


def test_what_stands_in_the_place_of_an_absent_prototype_does_not_matter() -> None:
    given, losses = batch(), []
    for filler in (0.0, 1.0, -50.0):
        prototypes = vectors()
        prototypes[2] = filler
        losses.append(FedProc(mu=10.0).objective(client(prototypes))(given).item())
    assert losses[0] == losses[1] == losses[2]


def test_prototypes_are_normalised_at_use() -> None:
    given = batch()
    lengths = torch.tensor([0.1, 3.0, 1.0, 40.0], dtype=torch.float64)[:, None]
    one, other = (
        FedProc(mu=10.0).objective(client(p))(given).item()
        for p in (vectors(), vectors() * lengths)
    )
    assert one == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("source", ["trained", "received", "running"])
def test_prototypes_are_constants(source: str) -> None:
    """No graph hangs on what goes up or comes down, whichever model the embeddings come from."""
    method = FedProc(prototype_model=source)  # type: ignore[arg-type]
    who = client(vectors().float())
    who.model.float()
    who.received = snapshot(who.model)
    method.objective(who)(Batch(batch().images.float(), batch().labels))
    upload = method.upload(who)
    assert not any(tensor.requires_grad for tensor in upload.values())
    merged = method.merge({}, [upload], 5)
    assert not any(tensor.requires_grad for tensor in merged.values())
    assert all(parameter.grad is None for parameter in who.model.parameters())


def test_merged_prototypes_are_weighted_by_counts_and_unseen_classes_stay() -> None:
    def upload(counts: list[int], value: float) -> dict[str, Tensor]:
        n = torch.tensor(counts)
        return {"sums": n[:, None] * torch.full((1, 2), value), "counts": n}

    method = FedProc()
    first = method.merge({}, [upload([1, 0, 0, 2], 4.0), upload([3, 0, 1, 0], 8.0)], 100)
    assert first["known"].tolist() == [True, False, True, True]
    assert first["prototypes"][:, 0].tolist()[0] == 7.0  # (1 * 4 + 3 * 8) / 4
    assert first["prototypes"][2:, 1].tolist() == [8.0, 4.0]
    second = method.merge(first, [upload([0, 5, 2, 0], 1.0)], 100)
    assert second["prototypes"][:, 0].tolist() == [7.0, 1.0, 1.0, 4.0]
    assert second["known"].tolist() == [True] * 4
