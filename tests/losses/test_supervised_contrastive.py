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
    close,
    cosines,
    gradients_check,
    mask,
    masked_similarities,
    normal,
    others,
    permutation,
    quick,
    random_labels,
    reductions,
    same,
    seeds,
    temperatures,
    value_and_gradients,
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


@BOTH
@pytest.mark.parametrize(
    "labels",
    [[0, 0, 0, 0], [0, 1, 2, 3], [0], [0, 0], [0, 1], [2, 0, 2, 2, 0, 1]],
    ids=["one class", "all distinct", "one", "two alike", "two unlike", "a singleton class"],
)
def test_degenerate_batches_equal_the_double_loop(labels, reduction):
    labels = torch.tensor(labels)
    agree(cosines(len(labels), len(labels)), same(labels), others(labels), reduction=reduction)


@BOTH
@pytest.mark.parametrize("columns", [0, 4])
def test_empty_masks_give_zero_with_zero_gradient(columns, reduction):
    nothing = torch.zeros(3, columns, dtype=torch.bool)
    value, gradient = value_and_gradients(
        lambda s: supervised_contrastive(s, nothing, nothing, reduction=reduction),
        cosines(3, columns),
    )
    assert value.shape == ()
    assert value == 0
    assert gradient.eq(0).all()


@BOTH
def test_an_anchor_without_positives_still_counts_in_the_mean(reduction):
    similarity, positives = cosines(4, 6), mask(4, 6, 0.5, 1)
    positives[:, 0] = True
    everyone = torch.ones_like(positives)
    value = supervised_contrastive(similarity, positives, everyone, reduction=reduction)
    longer = supervised_contrastive(
        torch.cat([similarity, cosines(1, 6, seed=9)]),
        torch.cat([positives, torch.zeros(1, 6, dtype=torch.bool)]),
        torch.ones(5, 6, dtype=torch.bool),
        reduction=reduction,
    )
    close(longer, value * 4 / 5)


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


def test_an_absent_class_is_the_same_as_no_column_and_gets_no_gradient():
    labels, classes, absent = torch.tensor([0, 1, 3, 0]), torch.arange(4), 2
    similarity = cosines(4, 4)
    own, present = labels[:, None] == classes, classes != absent
    known = present.expand_as(own)
    value, gradient = value_and_gradients(
        lambda s: supervised_contrastive(s, own & known, known), similarity
    )
    agree(similarity, own & known, known)
    close(value, supervised_contrastive(similarity[:, present], own[:, present], known[:, present]))
    assert gradient[:, absent].eq(0).all()


@quick
@given(seeds, reductions)
def test_neither_the_order_of_anchors_nor_of_candidates_matters(seed, reduction):
    case = cosines(5, 7, seed), mask(5, 7, 0.4, seed + 1), mask(5, 7, 0.6, seed + 2)
    rows, columns = permutation(5, seed), permutation(7, seed)
    shuffled = [x[rows][:, columns] for x in case]
    close(
        supervised_contrastive(*shuffled, reduction=reduction),
        supervised_contrastive(*case, reduction=reduction),
    )


@BOTH
def test_gradcheck(reduction):
    labels = torch.tensor([0, 1, 0, 2, 1, 3])

    def loss(z):
        similarity = cosine_similarity(z, z)
        return supervised_contrastive(similarity, same(labels), others(labels), reduction=reduction)

    assert gradients_check(loss, normal(6, 4))


@pytest.mark.parametrize("reduction", ["none", "Mean", "", "average"])
def test_an_unknown_reduction_is_refused(reduction):
    labels = torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match="reduction"):
        supervised_contrastive(cosines(3, 3), same(labels), others(labels), reduction=reduction)
