"""CCVR against released code where that follows the paper, and against the paper's formulas."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.oracles.ccvr import SAMPLES, moments
from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    Tiny,
    client_data,
    in_the_middle,
    numbers,
    our_rounds,
    tensors_of,
)
from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.zoo.ccvr import CCVR
from dcfl.models import MLP, LinearModel
from dcfl.tensors import snapshot
from dcfl.testing.toys import TRAINING, toy_client, toy_model, two_rounds
from tests.methods.zoo.oracle import SINGLE, error, oracle

THEIRS = oracle("ccvr")


def uploaded(client: int) -> dict[str, torch.Tensor]:
    data, received = client_data(client), snapshot(Tiny(0))
    who = Client(client, 1, Tiny(1), received, {}, {}, data, TRAINING)
    return {name: tensor.double() for name, tensor in CCVR().upload(who).items()}


@pytest.mark.parametrize("client", range(len(LABELS)))
def test_mean_and_spread_of_a_client_are_those_of_released_code(client: int) -> None:
    sent = uploaded(client)
    assert sent["counts"].tolist() == np.bincount(LABELS[client], minlength=CLASSES).tolist()
    for label, mean in THEIRS["clients"][client]["mean"].items():
        n, total = sent["counts"][int(label)], sent["sums"][int(label)]
        squares = sent["products"][int(label)].diagonal()
        deviation = ((squares - total**2 / n) / (n - 1)).clamp(min=0).sqrt()
        theirs = THEIRS["clients"][client]["var"][label]  # a deviation, in spite of its name
        assert error({"m": (total / n).tolist()}, {"m": mean}) <= SINGLE
        assert deviation.tolist() == pytest.approx(theirs, abs=1e-3)  # small ones cancel in float32


def test_the_classifier_is_trained_as_by_released_code() -> None:
    method, model = CCVR(samples=SAMPLES), Tiny(0)
    features, labels = method.drawn(moments(), seed=0)
    weight, bias = method.calibrated(
        model.classifier.weight.detach(), model.classifier.bias.detach(), features, labels
    )
    assert error(numbers({"weight": weight, "bias": bias}), THEIRS["classifier"]) <= SINGLE


def test_features_are_drawn_with_the_papers_mean_and_covariance() -> None:
    """Of all clients together, from each client's own unbiased covariance, as in its Eq. 4."""
    uploads = [uploaded(client) for client in range(len(LABELS))]
    pooled = {name: sum(upload[name] for upload in uploads) for name in uploads[0]}
    method = CCVR(samples=10_000)
    draws = [method.drawn(pooled, seed) for seed in range(20)]
    drawn, labels = (torch.cat(found) for found in zip(*draws, strict=True))
    for c in range(CLASSES):
        embeddings = []
        for client in range(len(LABELS)):
            x, y = tensors_of(client)
            embeddings.append(Tiny(0)(x).embedding.detach().numpy()[y.numpy() == c])
        sizes = [len(z) for z in embeddings]
        total, held = sum(sizes), [z for z in embeddings if len(z)]
        mean = sum(z.sum(axis=0) for z in held) / total
        covariance = sum((len(z) - 1) * np.cov(z.T) for z in held if len(z) > 1) / (total - 1)
        covariance += sum(len(z) * np.outer(z.mean(0), z.mean(0)) for z in held) / (total - 1)
        covariance -= total / (total - 1) * np.outer(mean, mean)
        ours = drawn[labels == c].numpy()
        np.testing.assert_allclose(ours.mean(axis=0), mean, atol=5e-3)
        np.testing.assert_allclose(np.cov(ours.T), covariance, atol=5e-3)


def test_training_is_fedavgs_whatever_the_server_scores() -> None:
    cohorts = [[0, 1, 2, 3], [0, 2], [1, 3]]
    ours, plain = our_rounds(CCVR(), cohorts), our_rounds(FedAvg(), cohorts)
    for own, other in zip(ours, plain, strict=True):
        for name in other:
            same = torch.equal(own[name], other[name])
            assert same == name.startswith("body")
    x, y = map(torch.cat, zip(*map(tensors_of, range(len(LABELS))), strict=True))
    losses = []
    for weights in (ours[0], plain[0]):
        model = Tiny()
        model.load_state_dict(weights)
        losses.append(F.cross_entropy(model(x).logits, y).item())
    assert losses[0] < losses[1]


def test_a_class_that_is_absent_keeps_what_the_server_knows_of_it() -> None:
    rounds = two_rounds(CCVR(), "batch", [0, 0, 1, 1, 2, 2] * 2)
    assert rounds.state.kept["counts"].tolist() == [4, 4, 4, 0]
    assert set(rounds.shared) == {"classifier.weight", "classifier.bias"}
    _, labels = CCVR().drawn(rounds.state.kept, seed=0)
    assert labels.unique().tolist() == [0, 1, 2]


def test_networks_without_a_trained_classifier_are_refused() -> None:
    model = toy_model()
    model.classifier.requires_grad_(False)  # type: ignore[union-attr]
    for other in (model, MLP(64, 4).requires_grad_(False)):
        who = Client(0, 1, other, snapshot(other), {}, {}, toy_client([0, 1]), TRAINING)
        with pytest.raises(ConfigError, match="needs a trained linear layer"):
            CCVR().start(who)
    CCVR().start(in_the_middle())
    assert LinearModel(64, 4).classifier.bias is not None
