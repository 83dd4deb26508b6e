import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity as paired_cosine
from torch.nn.functional import cross_entropy

from dcfl.losses import model_contrastive
from tests.losses import reference
from tests.losses.cases import (
    assert_agree,
    close,
    gradients_check,
    normal,
    permutation,
    quick,
    seeds,
    temperatures,
    value_and_gradients,
)

sizes = st.integers(1, 6)


def triple(rows, dimensions, seed=0):
    return tuple(normal(rows, dimensions, seed + k) for k in range(3))


@quick
@given(sizes, sizes, seeds, temperatures)
def test_values_and_gradients_equal_the_double_loop(rows, dimensions, seed, temperature):
    local, global_, previous = triple(rows, dimensions, seed)
    assert_agree(
        model_contrastive,
        reference.model_contrastive,
        local,
        fixed=(global_, previous),
        temperature=temperature,
    )


def test_hand_computed_rows_with_the_default_temperature():
    local = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    global_ = torch.tensor([[3.0, 4.0], [0.0, 7.0]], dtype=torch.float64)
    previous = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    # Cosines 0.6 against 0 and 1 against -1.
    expected = (math.log(1 + math.exp(-1.2)) + math.log(1 + math.exp(-4.0))) / 2
    value = model_contrastive(local, global_, previous)
    assert value.item() == pytest.approx(expected, abs=1e-12)


@quick
@given(sizes, sizes, seeds, temperatures)
def test_is_a_two_way_cross_entropy_with_target_zero(rows, dimensions, seed, temperature):
    local, global_, previous = triple(rows, dimensions, seed)

    def two_way(z):
        logits = torch.stack([paired_cosine(z, global_), paired_cosine(z, previous)], dim=1)
        return cross_entropy(logits / temperature, torch.zeros(rows, dtype=torch.long))

    assert_agree(lambda z: model_contrastive(z, global_, previous, temperature), two_way, local)


@pytest.mark.parametrize("temperature", [0.05, 0.5, 2.0])
def test_a_previous_model_equal_to_the_global_one_gives_log_two_and_no_gradient(temperature):
    local, global_, _ = triple(4, 3)
    value, gradient = value_and_gradients(
        lambda z: model_contrastive(z, global_, global_, temperature), local
    )
    assert value.item() == pytest.approx(math.log(2), abs=1e-12)
    assert gradient.abs().max() < 1e-12


def test_without_a_previous_model_the_loss_is_exactly_zero():
    local, global_, _ = triple(4, 3)
    value, gradient = value_and_gradients(lambda z: model_contrastive(z, global_, None), local)
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert value == 0
    assert gradient.eq(0).all()


def test_the_zero_of_a_first_visit_can_be_added_to_another_loss():
    local, global_, _ = triple(4, 3)
    local.requires_grad_()
    (local.square().sum() + model_contrastive(local, global_, None)).backward()
    close(local.grad, 2 * local.detach())


@pytest.mark.parametrize("temperature", [0.05, 0.09, 0.11])
def test_a_wholly_wrong_direction_keeps_float64_accuracy(temperature):
    # The exponent is 2 / tau, around 20, where torch's softplus by default stops being a softplus.
    local = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    value = model_contrastive(local, -local, local, temperature)
    assert value.item() == pytest.approx(math.log1p(math.exp(2 / temperature)), rel=1e-14)


def test_rows_are_compared_in_pairs_only():
    local, global_, previous = triple(5, 3)
    single = [model_contrastive(*(x[[i]] for x in (local, global_, previous))) for i in range(5)]
    close(model_contrastive(local, global_, previous), torch.stack(single).mean())


def test_neither_the_order_of_samples_nor_their_scale_matters():
    case = triple(5, 3)
    order = permutation(5)
    scales = torch.linspace(0.1, 10, 5, dtype=torch.float64)[:, None]
    close(model_contrastive(*((scales * x)[order] for x in case)), model_contrastive(*case))


def test_a_zero_feature_vector_stays_finite():
    local, global_, previous = triple(3, 4)
    local[1] = 0
    value, gradient = value_and_gradients(lambda z: model_contrastive(z, global_, previous), local)
    close(value, reference.model_contrastive(local, global_, previous))
    assert gradient.isfinite().all()


def test_gradcheck():
    local, global_, previous = triple(4, 3)
    assert gradients_check(lambda z: model_contrastive(z, global_, previous), local)
