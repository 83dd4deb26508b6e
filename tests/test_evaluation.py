import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dcfl.evaluation import (
    alignment,
    ema,
    fairness,
    own_mix_accuracies,
    score_model,
    similarity_histogram,
    uniformity,
)
from dcfl.testing.toys import toy_model
from tests import toys


def unit(n: int, d: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def test_evaluate_counts_and_averages_over_all_batches() -> None:
    toy, model = toys.dataset(test=1203), toy_model().train()
    toy = replace(toy, class_names=tuple("abcde"))
    accuracy, loss, by_class, _ = score_model(model, toy)
    assert model.training
    model.eval()
    logits = model(toy.preparation.clean(toy.test.pixels)).logits.detach()
    expected = 100 * (logits.argmax(1) == toy.test.labels).double().mean().item()
    assert accuracy == pytest.approx(expected)
    for label in range(4):
        own = toy.test.labels == label
        share = 100 * (logits.argmax(1) == toy.test.labels)[own].double().mean().item()
        assert by_class[label].item() == pytest.approx(share)
    assert by_class[4].isnan()  # no such image
    assert loss == pytest.approx(F.cross_entropy(logits, toy.test.labels).item(), rel=1e-5)


def test_scores_that_are_not_numbers_are_no_answer() -> None:
    """argmax takes the first class then, and would be right on its images."""
    toy, model = toys.dataset(), toy_model()
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    assert score_model(model, toy).accuracy == 0


def test_evaluate_leaves_the_running_statistics_alone() -> None:
    toy, model = toys.dataset(), toy_model()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    score_model(model, toy)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_own_mixes_weigh_the_classes() -> None:
    by_class = torch.tensor([100.0, 50.0, float("nan")], dtype=torch.float64)
    mixes = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [0.0, 0.0, 1.0]])
    *some, nobody = own_mix_accuracies(by_class, mixes.double()).tolist()
    assert some == pytest.approx([100.0, 75.0, 50.0])
    assert math.isnan(nobody)  # its only class has no test image


def test_the_uniform_mix_is_the_accuracy_on_a_balanced_test_set() -> None:
    toy, model = toys.dataset(), toy_model()
    accuracy, _, by_class, _ = score_model(model, toy)
    even = own_mix_accuracies(by_class, torch.full((1, 4), 0.25).double())
    assert even.tolist() == pytest.approx([accuracy])


def test_fairness_is_the_mean_and_the_mean_of_the_lowest_tenth() -> None:
    mean, worst = fairness(torch.arange(100).double())
    assert (mean, worst) == (pytest.approx(49.5), pytest.approx(4.5))
    nobody = float("nan")
    assert fairness(torch.tensor([3.0, 1.0, 2.0, nobody])) == (2.0, 1.0)
    assert fairness(torch.tensor([nobody])) == (None, None)


def test_ema_starts_with_the_first_value() -> None:
    assert ema([50.0]) == 50.0
    assert ema([50.0, 60.0]) == pytest.approx(51.0)
    assert ema([10.0, 20.0, 40.0], decay=0.5) == pytest.approx(27.5)
    with pytest.raises(ValueError, match="no values"):
        ema([])


def test_alignment_is_the_mean_distance_of_pairs() -> None:
    x, y = unit(5), unit(5, seed=1)
    by_hand = np.mean(
        [np.linalg.norm(a - b) ** 2 for a, b in zip(x.numpy(), y.numpy(), strict=True)]
    )
    assert alignment(x, y).item() == pytest.approx(by_hand)
    assert alignment(x, y).item() == pytest.approx((2 - 2 * (x * y).sum(1)).mean().item())
    assert alignment(x, x).item() == 0
    cubed = np.mean([np.linalg.norm(a - b) ** 3 for a, b in zip(x.numpy(), y.numpy(), strict=True)])
    assert alignment(x, y, alpha=3).item() == pytest.approx(cubed)


def test_uniformity_is_the_log_mean_gaussian_of_distinct_pairs() -> None:
    x = unit(7)
    for t in (2, 0.5):
        values = [np.exp(-t * np.sum((a - b) ** 2)) for a, b in combinations(x.numpy(), 2)]
        assert uniformity(x, t).item() == pytest.approx(np.log(np.mean(values)))
    assert uniformity(torch.ones(4, 1)).item() == pytest.approx(0)  # all in one point: the worst


@pytest.mark.parametrize("count", [1, 2, 5, 1500])
def test_the_histogram_counts_every_unordered_pair_once(count: int) -> None:
    z, labels = unit(count, d=3).float() * 5, torch.arange(count) % 3
    intra, inter = similarity_histogram(z, labels, bins=20)
    per_class = np.bincount(labels, minlength=3)
    same = int((per_class * (per_class - 1) // 2).sum())
    assert intra.sum().item() == same
    assert inter.sum().item() == count * (count - 1) // 2 - same
    if count <= 5:
        return
    pairs = np.triu_indices(count, 1)
    cosine = (unit(count, d=3).float() @ unit(count, d=3).float().T).numpy()[pairs]
    equal = (labels[:, None] == labels[None, :]).numpy()[pairs]
    for counts, chosen in ((intra, equal), (inter, ~equal)):
        expected, _ = np.histogram(cosine[chosen], bins=20, range=(-1, 1))
        # cosines on a bin's edge may fall to either side
        assert np.abs(counts.numpy() - expected).max() <= 5


def test_identical_embeddings_fall_into_the_last_bin() -> None:
    intra, inter = similarity_histogram(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), bins=10)
    assert intra.tolist() == [0] * 9 + [2]
    assert inter.tolist() == [0] * 9 + [4]


def test_the_past_keeps_as_much_as_if_every_round_had_been_scored() -> None:
    """A value that stands for the rounds since the one before counts as often as it stands for."""
    scored = {3: 10.0, 6: 30.0, 7: 20.0}
    every_round = [10.0, 30.0, 30.0, 30.0, 20.0]
    assert ema([*scored.values()], rounds=[*scored]) == pytest.approx(ema(every_round))
    assert ema([10.0, 30.0, 20.0], rounds=[4, 5, 6]) == ema([10.0, 30.0, 20.0])  # every bit
    with pytest.raises(ValueError, match="shorter"):
        ema([1.0, 2.0], rounds=[1])
