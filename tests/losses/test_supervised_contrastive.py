import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pytorch_metric_learning.losses import SupConLoss
from torch.nn.functional import cross_entropy

from dcfl.losses import cosine_similarity, supervised_contrastive
from tests.losses import reference
from tests.losses.cases import (
    assert_agree,
    cosines,
    masked_similarities,
    normal,
    others,
    quick,
    random_labels,
    reductions,
    same,
    seeds,
    temperatures,
)

BOTH = pytest.mark.parametrize("reduction", ["sum", "mean"])


def agree(similarity, positives, candidates, **options):
    assert_agree(
        supervised_contrastive,
        reference.supervised_contrastive,
        similarity,
        fixed=(positives, candidates),
        **options,
    )


@quick
@given(masked_similarities(), temperatures, reductions)
def test_values_and_gradients_equal_the_double_loop(case, temperature, reduction):
    agree(*case, temperature=temperature, reduction=reduction)


def test_a_hand_computed_anchor_with_the_default_constants():
    similarity = torch.tensor([[0.8, 0.2, -0.4, 0.6]], dtype=torch.float64)
    positives = torch.tensor([[True, False, False, True]])
    candidates = torch.tensor([[True, True, False, True]])
    log_sum = math.log(math.exp(1.6) + math.exp(0.4) + math.exp(1.2))
    value = supervised_contrastive(similarity, positives, candidates)
    assert value.item() == pytest.approx(log_sum - 1.4, abs=1e-12)
    summed = supervised_contrastive(similarity, positives, candidates, reduction="sum")
    assert summed.item() == pytest.approx(2 * (log_sum - 1.4), abs=1e-12)


@quick
@given(seeds, st.integers(2, 4), temperatures)
def test_agrees_with_pytorch_metric_learning(seed, classes, temperature):
    # Everyone has a partner and an opponent: the oracle averages over anchors with positives only
    # and gives 0 to a batch without negatives.
    labels = torch.arange(classes).repeat_interleave(1 + random_labels(classes, 3, seed) + 1)
    features = normal(len(labels), 4, seed)
    oracle = SupConLoss(temperature=temperature)

    def loss(z):
        similarity = cosine_similarity(z, z)
        return supervised_contrastive(similarity, same(labels), others(labels), temperature)

    assert_agree(loss, lambda z: oracle(z, labels), features)


@quick
@given(seeds, st.integers(1, 6), st.integers(1, 6), temperatures, reductions)
def test_over_all_prototypes_it_is_the_cross_entropy_of_scaled_cosines(
    seed, rows, classes, temperature, reduction
):
    labels = random_labels(rows, classes, seed)
    own = labels[:, None] == torch.arange(classes)
    assert_agree(
        lambda s: supervised_contrastive(
            s, own, torch.ones_like(own), temperature, reduction=reduction
        ),
        lambda s: cross_entropy(s / temperature, labels),
        cosines(rows, classes, seed),
    )
