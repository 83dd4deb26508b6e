"""MOON against its equation, sample by sample, and the ways in which its ports went wrong."""

import copy
from math import log

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.moon import MOON
from dcfl.models import FeatureModel
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model, two_rounds, visit
from tests.methods.cases import EXACT, LABELS, batch, cosine, require_same


def other_weights(seed: int) -> dict[str, Tensor]:
    """Another network, whose running statistics are not those of a fresh one."""
    network = toy_model(seed=seed).double()
    torch.manual_seed(seed)
    network.train()(torch.randn(16, 1, 8, 8, dtype=torch.float64))
    return snapshot(network)


def client(memory: dict[str, Tensor] | None = None) -> Client:
    network = toy_model().double().train()
    return Client(0, 2, network, other_weights(1), {}, memory or {}, toy_client(LABELS), TRAINING)


def embeddings(network: FeatureModel, weights: dict[str, Tensor], images: Tensor) -> Tensor:
    """By a frozen model: evaluation mode, so that each image stands alone, and no gradient."""
    frozen = copy.deepcopy(network)
    frozen.load_state_dict(weights)
    frozen.eval()
    return torch.cat([frozen(image[None]).embedding.detach() for image in images])


def transcription(who: Client, given: Batch, mu: float, tau: float) -> Tensor:
    output = who.model(given.images)
    near = embeddings(who.model, dict(who.received), given.images)
    far = embeddings(who.model, dict(who.memory), given.images)
    losses = []
    for z, z_global, z_previous in zip(output.embedding, near, far, strict=True):
        a = torch.exp(cosine(z, z_global) / tau)
        b = torch.exp(cosine(z, z_previous) / tau)
        losses.append(-torch.log(a / (a + b)))
    return F.cross_entropy(output.logits, given.labels) + mu * sum(losses) / len(losses)


@pytest.mark.parametrize("tau", [0.5, 1.0, 0.1])
def test_value_and_gradient_are_those_of_the_equation(tau: float) -> None:
    who, given = client(memory=other_weights(2)), batch()
    list(who.model.parameters())
    loss = MOON(mu=5.0, temperature=tau).objective(who)(given)
    expected = transcription(who, given, 5.0, tau)
    assert abs(loss.item() - FedAvg().objective(who)(given).item()) > 0.1
    require_same(loss, expected, who.model)


def test_without_a_memory_it_is_cross_entropy() -> None:
    who, given = client(), batch()
    assert MOON(mu=5.0).objective(who)(given).item() == FedAvg().objective(who)(given).item()


def test_the_first_visit_has_the_bits_of_fedavg_and_the_second_has_not() -> None:
    ours, plain = (two_rounds(m, "batch", LABELS, LABELS[:5]) for m in (MOON(mu=5.0), FedAvg()))
    assert sha256(ours.first[0].update.weights) == sha256(plain.first[0].update.weights)
    assert sha256(ours.second[0].update.weights) != sha256(plain.second[0].update.weights)


def test_a_previous_model_equal_to_the_global_one_gives_log_2_and_no_gradient() -> None:
    who, given = client(memory=other_weights(1)), batch()
    parameters = list(who.model.parameters())
    loss, plain = MOON(mu=5.0).objective(who)(given), FedAvg().objective(who)(given)
    assert (loss - plain).item() == pytest.approx(5 * log(2), abs=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(plain, parameters), **EXACT
    )


def test_the_frozen_models_evaluate_and_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    who, given = client(memory=other_weights(2)), batch()
    frozen: list[FeatureModel] = []
    freeze = who.frozen

    def watched(weights: dict[str, Tensor]) -> FeatureModel:
        frozen.append(freeze(weights))
        return frozen[-1]

    monkeypatch.setattr(who, "frozen", watched)
    objective = MOON().objective(who)
    for _ in range(2):
        objective(given).backward()
    assert {sha256(f.state_dict()) for f in frozen} == {sha256(who.received), sha256(who.memory)}
    for model in frozen:
        assert not any(module.training for module in model.modules())
        assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    live = {tensor.data_ptr() for tensor in who.model.state_dict().values()}
    assert not any(t.data_ptr() in live for f in frozen for t in f.state_dict().values())
    assert who.model.training


def test_all_three_models_see_the_same_augmented_images(monkeypatch: pytest.MonkeyPatch) -> None:
    who, given = client(memory=other_weights(2)), batch()
    seen: list[Tensor] = []
    forward = type(who.model).forward

    def watched(model: FeatureModel, images: Tensor) -> object:
        seen.append(images)
        return forward(model, images)

    monkeypatch.setattr(type(who.model), "forward", watched)
    MOON().objective(who)(given)
    assert len(seen) == 3
    assert all(torch.equal(images, given.images) for images in seen)


def test_the_statistics_move_once_a_step_and_count_training_batches_only() -> None:
    who, given = client(memory=other_weights(2)), batch()
    alone = copy.deepcopy(who.model)
    alone(given.images)
    MOON().objective(who)(given)
    assert sha256(dict(who.model.named_buffers())) == sha256(dict(alone.named_buffers()))


def test_the_memory_is_the_trained_model_and_a_copy_of_it() -> None:
    update, memory = visit(MOON(), toy_client(LABELS))
    assert sha256(memory) == sha256(update.weights)
    who = client()
    kept = MOON().remember(who)
    before = sha256(kept)
    with torch.no_grad():
        for tensor in who.model.state_dict().values():
            tensor.add_(1)
    assert sha256(kept) == before


def test_a_small_temperature_does_not_overflow() -> None:
    who, given = client(memory=other_weights(2)), batch()
    loss = MOON(temperature=1e-4).objective(who)(given)
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(who.model.parameters())))
