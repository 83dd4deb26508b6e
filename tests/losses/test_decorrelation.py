import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcfl.losses import decorrelation
from tests.losses import reference
from tests.losses.cases import (
    assert_agree,
    close,
    gradients_check,
    normal,
    permutation,
    quick,
    seeds,
    value_and_gradients,
)

rows, dimensions = st.integers(1, 6), st.integers(2, 5)


@quick
@given(rows, dimensions, seeds)
def test_values_and_gradients_equal_the_double_loop(n, d, seed):
    assert_agree(decorrelation, reference.decorrelation, normal(n, d, seed) + 1)


@quick
@given(st.integers(2, 40), dimensions, seeds)
def test_equals_the_scaled_mean_of_squared_correlations(n, d, seed):
    features = normal(n, d, seed)
    # A variance that drowns the 1e-8 which corrcoef does not have.
    features = 1e3 * features / features.std(dim=0)
    rho = np.corrcoef(features.numpy(), rowvar=False)
    off_diagonal = rho[~np.eye(d, dtype=bool)]
    expected = (n - 1) ** 2 / n * np.mean(off_diagonal**2)
    assert decorrelation(features).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_hand_computed_pair_of_columns():
    features = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
    # Deviations (-1, 0, 1) and (-1, -1, 2), variances 1 and 3: C = 3 / sqrt(3).
    assert decorrelation(features).item() == pytest.approx(3 / 3, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_of_one_gives_exactly_zero(dtype):
    value, gradient = value_and_gradients(decorrelation, normal(1, 4).to(dtype))
    assert value.shape == ()
    assert value == 0
    assert gradient.eq(0).all()


def test_a_single_dimension_has_nothing_to_correlate_with():
    assert decorrelation(normal(5, 1)) == 0


def test_a_batch_of_two_gives_one_half_and_no_gradient():
    value, gradient = value_and_gradients(decorrelation, normal(2, 5))
    assert value.item() == pytest.approx(0.5, abs=1e-6)
    assert gradient.abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dead", [[1], [0, 3], [0, 1, 2, 3]])
def test_constant_dimensions_stay_finite(dead, dtype):
    features = normal(6, 4)
    features[:, dead] = 0
    value, gradient = value_and_gradients(decorrelation, features.to(dtype))
    assert value.isfinite()
    assert gradient.isfinite().all()


def test_constant_dimensions_equal_the_double_loop():
    features = normal(6, 4)
    features[:, 1] = 0
    features[:, 2] = 1
    assert_agree(decorrelation, reference.decorrelation, features)


def test_a_constant_dimension_counts_as_uncorrelated():
    features = normal(6, 3)
    with_dead = torch.cat([features, torch.zeros(6, 1, dtype=torch.float64)], dim=1)
    # 6 of the 12 ordered pairs of four columns are pairs of the first three.
    close(decorrelation(with_dead), decorrelation(features) * 6 / 12)


@quick
@given(st.integers(2, 6), dimensions, seeds)
def test_neither_the_order_of_samples_nor_of_dimensions_matters(n, d, seed):
    features = normal(n, d, seed)
    shuffled = features[permutation(n, seed)][:, permutation(d, seed)]
    close(decorrelation(shuffled), decorrelation(features))


@quick
@given(seeds, st.floats(1.0, 1e3))
def test_shift_and_positive_rescaling_change_nothing_at_large_variance(seed, scale):
    features = 1e3 * normal(8, 4, seed)
    close(decorrelation(scale * features + 5), decorrelation(features))


def test_gradcheck():
    assert gradients_check(decorrelation, normal(5, 4))
