"""APFL against its authors' code, and its alpha against the slope of the loss."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.oracles.problem import TRAINING, Straight, batch_of, numbers, our_rounds
from dcfl.messages import Tensors
from dcfl.methods.personal.apfl import APFL
from dcfl.models.parts import personal_and_rest
from dcfl.tensors import apart
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("apfl")


@pytest.mark.parametrize("case", range(len(THEIRS["alphas"])))
def test_all_models_end_where_the_authors_do(case: int) -> None:
    alpha, theirs, memories = THEIRS["alphas"][case], THEIRS["runs"][case], dict[int, Tensors]()
    ours = our_rounds(
        APFL(alpha, adaptive=False), THEIRS["cohorts"], model=Straight, memories=memories
    )
    for weights, others in zip(ours, theirs["rounds"], strict=True):
        assert error(numbers(weights), others) <= DOUBLE
    for client, own in enumerate(theirs["own"]):
        _, rest = personal_and_rest(memories[client])
        v, kept = apart(rest, "v", "kept")
        assert error(numbers(v), own) <= DOUBLE
        assert error(numbers(ours[-1]), own) > 0.01
        assert float(kept["alpha"]) == alpha
    last = memories[0]  # its own last round began with the shared model of the round before
    assert error(numbers(personal_and_rest(last)[0]), theirs["own"][0]) > 0.01


def test_alpha_follows_the_slope_of_the_mixtures_loss() -> None:
    once, twice = dict[int, Tensors](), dict[int, Tensors]()
    our_rounds(APFL(0.5), [[0]], model=Straight, memories=once)
    w = our_rounds(APFL(0.5), [[0], [1], [0]], model=Straight, memories=twice)[1]
    before = apart(personal_and_rest(once[0])[1], "v", "kept")

    def loss(alpha: float) -> float:
        """Of client 0 in its second round, after the first step of its shared model."""
        model, batch = Straight(), batch_of(0)
        model.load_state_dict(w)
        F.cross_entropy(model(batch.images).logits, batch.labels).backward()
        with torch.no_grad():
            for live in model.parameters():
                live -= TRAINING.lr * live.grad
            for name, live in model.named_parameters():
                live.copy_(alpha * before[0][name] + (1 - alpha) * live)
            return float(F.cross_entropy(model(batch.images).logits, batch.labels))

    at = float(before[1]["alpha"])
    slope = (loss(at + 1e-4) - loss(at - 1e-4)) / 2e-4
    after = apart(personal_and_rest(twice[0])[1], "v", "kept")[1]["alpha"]
    assert abs(slope) > 0.01
    assert float(after) - at == pytest.approx(-TRAINING.lr * slope, rel=1e-3)
