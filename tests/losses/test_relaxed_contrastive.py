import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcfl.losses import relaxed_contrastive
from tests.losses import reference
from tests.losses.cases import (
    assert_agree,
    close,
    clustered,
    gradients_check,
    labelled_features,
    normal,
    permutation,
    quick,
    temperatures,
    weights,
)

MIXED = torch.tensor([0, 1, 0, 2, 1, 0, 0, 1])


def agree(features, labels, **options):
    assert_agree(
        relaxed_contrastive,
        reference.relaxed_contrastive,
        features,
        fixed=(labels,),
        **options,
    )


def directions(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def softplus(x):
    return math.log1p(math.exp(x))


@quick
@given(labelled_features())
def test_released_constants_equal_the_double_loop(case):
    agree(*case)


@quick
@given(
    labelled_features(),
    temperatures,
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(-0.9, 0.9),
    weights,
)
def test_general_form_equals_the_double_loop(
    case, temperature, hardest_positives, hardest_negatives, threshold, penalty
):
    agree(
        *case,
        temperature=temperature,
        hardest_positives=hardest_positives,
        hardest_negatives=hardest_negatives,
        threshold=threshold,
        penalty=penalty,
    )


@pytest.mark.parametrize("hardest", [1, 2, 5])
@pytest.mark.parametrize(
    "labels",
    [[0, 0, 0, 0], [0, 1, 2, 3], [0], [0, 0], [0, 1], [2, 0, 2, 2, 0, 1]],
    ids=["one class", "all distinct", "one", "two alike", "two unlike", "a singleton class"],
)
def test_degenerate_batches_equal_the_double_loop(labels, hardest):
    labels = torch.tensor(labels)
    agree(
        clustered(labels, 4, spread=0.3),
        labels,
        temperature=0.5,
        hardest_positives=hardest,
        hardest_negatives=hardest,
    )


def test_a_hand_computed_batch_with_the_released_constants():
    # Class 0 at 0, 20 and 40 degrees, class 1 alone at 50: the hardest pairs can be read off.
    features, labels = directions(0, 20, 40, 50), torch.tensor([0, 0, 0, 1])

    def cos(degrees):
        return math.cos(math.radians(degrees))

    def contrast(positive, *negatives):
        return math.log(1 + sum(math.exp((cos(n) - cos(positive)) / 0.05) for n in negatives))

    contrasts = [contrast(40, 50), contrast(20, 30), contrast(40, 10), contrast(0, 10, 30)]
    # All three are within acos(0.7) = 45.6 degrees; the singleton has nobody to be too close to.
    penalties = [softplus((cos(d) - 1) / 0.05) for d in (40, 20, 40)] + [softplus(-2 / 0.05)]
    expected = sum(contrasts) / 4 + sum(penalties) / 4
    assert relaxed_contrastive(features, labels).item() == pytest.approx(expected, abs=1e-12)


def test_in_a_single_class_batch_only_the_penalty_remains():
    features, labels = directions(0, 20, 40), torch.tensor([1, 1, 1])
    assert relaxed_contrastive(features, labels, penalty=0.0) == 0
    q = [math.cos(math.radians(d)) for d in (40, 20, 40)]
    expected = sum(softplus((x - 1) / 0.05) for x in q) / 3
    assert relaxed_contrastive(features, labels).item() == pytest.approx(expected, abs=1e-12)


def test_a_singleton_class_is_pushed_away_from_its_negatives_by_its_self_pair():
    features, labels = directions(0, 90), torch.tensor([0, 1])
    value = relaxed_contrastive(features, labels, temperature=0.5)
    # p = 1, one negative at 0; the penalty is the inactive constant.
    assert value.item() == pytest.approx(softplus(-1 / 0.5) + softplus(-2 / 0.5), abs=1e-12)


def test_the_penalty_is_inactive_below_the_threshold_and_active_at_it():
    # Orthogonal vectors have a cosine of exactly 0, hence a comparison without rounding.
    features, labels = torch.eye(2, dtype=torch.float64), torch.tensor([0, 0])

    def value(threshold):
        return relaxed_contrastive(features, labels, temperature=1.0, threshold=threshold).item()

    assert value(0.1) == pytest.approx(softplus(-2.0), abs=1e-12)
    assert value(0.0) == pytest.approx(softplus(-1.0), abs=1e-12)


def test_an_inactive_penalty_has_no_gradient():
    features = directions(0, 60, 120).requires_grad_()
    relaxed_contrastive(features, torch.zeros(3, dtype=torch.long), temperature=0.5).backward()
    assert features.grad.abs().max() < 1e-12


@pytest.mark.parametrize("hardest", [2, 3, 6], ids=["as many as rows", "one more", "many more"])
def test_missing_positive_slots_count_as_minus_one_in_the_penalty(hardest):
    features, labels = directions(0, 10), torch.tensor([0, 0])
    value = relaxed_contrastive(features, labels, temperature=0.5, hardest_positives=hardest)
    q = math.cos(math.radians(10))
    expected = math.log(1 + math.exp((q - 1) / 0.5) + (hardest - 1) * math.exp(-2 / 0.5))
    assert value.item() == pytest.approx(expected / hardest, abs=1e-12)


def test_two_positives_halve_the_penalty_as_in_the_released_code():
    # One class at 0, 20 and 40 degrees, no negatives: the penalty is all there is.
    features, labels = directions(0, 20, 40), torch.tensor([1, 1, 1])
    value = relaxed_contrastive(features, labels, hardest_positives=2)

    def pushed(*degrees):
        pairs = [math.exp((math.cos(math.radians(d)) - 1) / 0.05) for d in degrees]
        return math.log(1 + sum(pairs)) / 2

    expected = (pushed(20, 40) + pushed(20, 20) + pushed(20, 40)) / 3
    assert value.item() == pytest.approx(expected, abs=1e-12)


def test_a_place_without_a_positive_counts_as_zero_in_the_contrast():
    features, labels = directions(0, 10, 50, 70), torch.tensor([0, 0, 1, 1])
    two, many = (
        relaxed_contrastive(features, labels, hardest_positives=k, penalty=0.0) for k in (2, 20)
    )
    close(two / 10, many)


def test_more_negatives_than_there_are_changes_nothing():
    features = clustered(MIXED, 4)
    all_, more = (relaxed_contrastive(features, MIXED, hardest_negatives=k) for k in (7, 50))
    close(all_, more)


def test_duplicates_in_the_batch_have_the_value_of_the_double_loop():
    features = clustered(MIXED, 4)
    features[2] = features[0]
    features[5] = 3 * features[1]
    for hardest in (1, 3):
        options = {"temperature": 0.5, "hardest_positives": hardest, "hardest_negatives": 2}
        close(
            relaxed_contrastive(features, MIXED, **options),
            reference.relaxed_contrastive(features, MIXED, **options),
        )


@quick
@given(labelled_features(), st.integers(1, 3))
def test_order_scale_and_names_of_the_classes_do_not_matter(case, hardest):
    features, labels = case
    order = permutation(len(labels), seed=3)
    scales = torch.linspace(0.1, 10, len(labels), dtype=torch.float64)[:, None]
    options = {"temperature": 0.2, "hardest_positives": hardest}
    close(
        relaxed_contrastive((scales * features)[order], 7 - 2 * labels[order], **options),
        relaxed_contrastive(features, labels, **options),
    )


@pytest.mark.parametrize(("hardest_positives", "hardest_negatives"), [(1, 2), (3, 4)])
def test_gradcheck(hardest_positives, hardest_negatives):
    features = normal(8, 4, seed=5)
    unit = features / features.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T)[torch.triu(torch.ones(8, 8), diagonal=1).bool()].sort().values
    # A kink within reach of the finite differences would make the check meaningless.
    assert cosines.diff().min() > 1e-4
    assert (cosines - 0.3).abs().min() > 1e-4

    def loss(z):
        return relaxed_contrastive(
            z, MIXED, 0.5, hardest_positives, hardest_negatives, threshold=0.3
        )

    assert gradients_check(loss, features)
