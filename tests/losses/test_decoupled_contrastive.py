import math

import pytest
import torch
from hypothesis import given

from dcfl.losses import cosine_similarity, decoupled_contrastive, supervised_contrastive
from tests.losses import reference
from tests.losses.cases import (
    assert_agree,
    close,
    clustered,
    cosines,
    different,
    gradients_check,
    labelled_features,
    mask,
    masked_similarities,
    normal,
    others,
    permutation,
    quick,
    reductions,
    same,
    seeds,
    temperatures,
    value_and_gradients,
    weights,
)

BOTH = pytest.mark.parametrize("reduction", ["sum", "mean"])


def agree(similarity, positives, negatives, **options):
    assert_agree(
        decoupled_contrastive,
        reference.decoupled_contrastive,
        similarity,
        fixed=(positives, negatives),
        **options,
    )


@quick
@given(masked_similarities(), temperatures, weights, weights, reductions)
def test_values_and_gradients_equal_the_double_loop(case, temperature, align, uniform, reduction):
    agree(*case, temperature=temperature, align=align, uniform=uniform, reduction=reduction)


@quick
@given(labelled_features(), temperatures, reductions)
def test_the_sample_wise_loss_equals_its_equation_down_to_the_features(
    case, temperature, reduction
):
    features, labels = case

    def loss(z):
        similarity = cosine_similarity(z, z)
        return decoupled_contrastive(
            similarity, same(labels), different(labels), temperature, reduction=reduction
        )

    def equation(z):
        similarity = reference.cosine_similarity(z, z)
        return reference.decoupled_contrastive(
            similarity, same(labels), different(labels), temperature, reduction=reduction
        )

    assert_agree(loss, equation, features)


def test_a_hand_computed_anchor_with_the_default_constants():
    similarity = torch.tensor([[0.8, 0.2, -0.4, 0.6]], dtype=torch.float64)
    positives = torch.tensor([[True, False, False, True]])
    spread = math.log(math.exp(0.4) + math.exp(-0.8))
    value = decoupled_contrastive(similarity, positives, ~positives)
    assert value.item() == pytest.approx(-0.9 * (1.6 + 1.2) + 0.1 * 2 * spread, abs=1e-12)
    averaged = decoupled_contrastive(similarity, positives, ~positives, reduction="mean")
    assert averaged.item() == pytest.approx(-0.9 * 1.4 + 0.1 * spread, abs=1e-12)


@BOTH
@pytest.mark.parametrize(
    "labels",
    [[0, 0, 0, 0], [0, 1, 2, 3], [0], [0, 0], [0, 1], [2, 0, 2, 2, 0, 1]],
    ids=["one class", "all distinct", "one", "two alike", "two unlike", "a singleton class"],
)
def test_degenerate_batches_equal_the_double_loop(labels, reduction):
    labels = torch.tensor(labels)
    similarity = cosines(len(labels), len(labels))
    agree(similarity, same(labels), different(labels), reduction=reduction)


@BOTH
def test_without_negatives_only_the_alignment_remains(reduction):
    labels = torch.zeros(4, dtype=torch.long)
    similarity = cosines(4, 4)
    value = decoupled_contrastive(
        similarity, same(labels), different(labels), temperature=0.5, reduction=reduction
    )
    per_anchor = torch.where(same(labels), similarity, 0).sum(1) / 0.5
    if reduction == "mean":
        per_anchor = per_anchor / 3
    close(value, -0.9 * per_anchor.mean())


@BOTH
def test_without_positives_the_loss_and_its_gradient_are_zero(reduction):
    labels = torch.arange(5)
    value, gradient = value_and_gradients(
        lambda s: decoupled_contrastive(s, same(labels), different(labels), reduction=reduction),
        cosines(5, 5),
    )
    assert value == 0
    assert gradient.eq(0).all()


@BOTH
@pytest.mark.parametrize("columns", [0, 4])
def test_empty_masks_give_zero_with_zero_gradient(columns, reduction):
    nothing = torch.zeros(3, columns, dtype=torch.bool)
    value, gradient = value_and_gradients(
        lambda s: decoupled_contrastive(s, nothing, nothing, reduction=reduction),
        cosines(3, columns),
    )
    assert value.shape == ()
    assert value == 0
    assert gradient.eq(0).all()


@BOTH
def test_an_anchor_without_positives_still_counts_in_the_mean(reduction):
    similarity, positives, negatives = cosines(4, 6), mask(4, 6, 0.5, 1), mask(4, 6, 0.5, 2)
    positives[:, 0] = True
    value = decoupled_contrastive(similarity, positives, negatives, reduction=reduction)
    idle = torch.zeros(1, 6, dtype=torch.bool)
    longer = decoupled_contrastive(
        torch.cat([similarity, cosines(1, 6, seed=9)]),
        torch.cat([positives, idle]),
        torch.cat([negatives, ~idle]),
        reduction=reduction,
    )
    close(longer, value * 4 / 5)


def test_an_absent_class_is_the_same_as_no_column_and_gets_no_gradient():
    labels, classes, absent = torch.tensor([0, 1, 3, 0]), torch.arange(4), 2
    similarity = cosines(4, 4)
    own = labels[:, None] == classes
    present = classes != absent
    value, gradient = value_and_gradients(
        lambda s: decoupled_contrastive(s, own & present, ~own & present), similarity
    )
    agree(similarity, own & present, ~own & present)
    close(value, decoupled_contrastive(similarity[:, present], own[:, present], ~own[:, present]))
    assert gradient[:, absent].eq(0).all()


def test_the_prototype_wise_loss_is_zero_for_an_anchor_whose_prototype_is_absent():
    labels, classes = torch.tensor([2, 2]), torch.arange(4)
    own, present = labels[:, None] == classes, classes != 2
    assert decoupled_contrastive(cosines(2, 4), own & present, ~own & present) == 0


def test_both_reductions_agree_when_every_anchor_has_one_positive():
    labels, classes = torch.tensor([0, 1, 3, 0]), torch.arange(4)
    own = labels[:, None] == classes
    summed, averaged = (
        decoupled_contrastive(cosines(4, 4), own, ~own, reduction=r) for r in ("sum", "mean")
    )
    close(summed, averaged)


@quick
@given(labelled_features(), temperatures, reductions)
def test_unit_weights_with_all_others_as_negatives_are_supcon(case, temperature, reduction):
    features, labels = case
    positives, everyone = same(labels), others(labels)

    def decoupled(z):
        similarity = cosine_similarity(z, z)
        return decoupled_contrastive(
            similarity, positives, everyone, temperature, 1.0, 1.0, reduction
        )

    def supcon(z):
        similarity = cosine_similarity(z, z)
        return supervised_contrastive(similarity, positives, everyone, temperature, reduction)

    assert_agree(decoupled, supcon, features)


@quick
@given(seeds, reductions)
def test_neither_the_order_of_anchors_nor_of_candidates_matters(seed, reduction):
    similarity, positives, negatives = (
        cosines(5, 7, seed),
        mask(5, 7, 0.4, seed + 1),
        mask(5, 7, 0.4, seed + 2),
    )
    rows, columns = permutation(5, seed), permutation(7, seed)
    shuffled = [x[rows][:, columns] for x in (similarity, positives, negatives)]
    close(
        decoupled_contrastive(*shuffled, reduction=reduction),
        decoupled_contrastive(similarity, positives, negatives, reduction=reduction),
    )


def test_a_permuted_and_rescaled_batch_has_the_same_sample_wise_loss():
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    features, order = clustered(labels, 4), permutation(6)
    scales = torch.linspace(0.1, 10, 6, dtype=torch.float64)[:, None]

    def loss(z, y):
        return decoupled_contrastive(cosine_similarity(z, z), same(y), different(y))

    close(loss((scales * features)[order], labels[order]), loss(features, labels))


@BOTH
def test_gradcheck(reduction):
    labels = torch.tensor([0, 1, 0, 2, 1, 3])

    def loss(z):
        similarity = cosine_similarity(z, z)
        return decoupled_contrastive(
            similarity, same(labels), different(labels), reduction=reduction
        )

    assert gradients_check(loss, normal(6, 4))


@pytest.mark.parametrize("reduction", ["none", "Sum", "", "average"])
def test_an_unknown_reduction_is_refused(reduction):
    labels = torch.tensor([0, 0, 1])
    with pytest.raises(ValueError, match="reduction"):
        decoupled_contrastive(cosines(3, 3), same(labels), different(labels), reduction=reduction)
