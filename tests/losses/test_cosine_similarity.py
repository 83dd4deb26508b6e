import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcfl.losses import cosine_similarity
from tests.losses import reference
from tests.losses.cases import (
    close,
    gradients_check,
    normal,
    permutation,
    quick,
    seeds,
    value_and_gradients,
)

sizes = st.integers(1, 6)


@quick
@given(sizes, sizes, sizes, seeds)
def test_values_and_gradients_equal_the_double_loop(rows, columns, dimensions, seed):
    a, b = normal(rows, dimensions, seed), normal(columns, dimensions, seed + 1)
    # Unequal weights, so that every entry's gradient shows.
    weights = normal(rows, columns, seed + 2)
    measured = value_and_gradients(lambda *x: (weights * cosine_similarity(*x)).sum(), a, b)
    expected = value_and_gradients(
        lambda *x: (weights * reference.cosine_similarity(*x)).sum(), a, b
    )
    close(cosine_similarity(a, b), reference.cosine_similarity(a, b))
    close(measured, expected)


def test_a_hand_computed_matrix():
    a = torch.tensor([[3.0, 4.0], [0.0, -2.0]], dtype=torch.float64)
    b = torch.tensor([[1.0, 0.0], [0.0, 5.0], [-1.0, 1.0]], dtype=torch.float64)
    half = 0.5**0.5
    expected = torch.tensor([[0.6, 0.8, 0.2 * half], [0.0, -1.0, -half]], dtype=torch.float64)
    close(cosine_similarity(a, b), expected)


def test_gradcheck():
    assert gradients_check(cosine_similarity, normal(3, 4), normal(5, 4, seed=1))


def test_a_zero_vector_has_similarity_zero_and_leaves_the_other_rows_alone():
    a, b = normal(3, 4), normal(2, 4, seed=1)
    a[1] = 0
    similarity = cosine_similarity(a, b)
    assert similarity[1].eq(0).all()
    close(similarity[[0, 2]], cosine_similarity(a[[0, 2]], b))
    close(cosine_similarity(b, a), similarity.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_zero_vector_has_a_finite_gradient(dtype):
    a = torch.zeros(2, 4, dtype=torch.float64)
    a[0] = 1
    a = a.to(dtype).requires_grad_()
    cosine_similarity(a, a).sum().backward()
    if dtype is not torch.float16:  # 1 / eps itself is beyond float16
        assert a.grad.isfinite().all()
    assert a.grad[0].isfinite().all()


@quick
@given(seeds, st.floats(1e-3, 1e3))
def test_positive_rescaling_of_single_rows_changes_nothing(seed, scale):
    a, b = normal(4, 3, seed), normal(5, 3, seed + 1)
    row_scales = scale ** torch.linspace(-1, 1, 4, dtype=torch.float64)
    close(cosine_similarity(row_scales[:, None] * a, scale * b), cosine_similarity(a, b))


def test_permuting_rows_permutes_the_matrix():
    a, b = normal(4, 3), normal(5, 3, seed=1)
    rows, columns = permutation(4), permutation(5)
    close(cosine_similarity(a[rows], b[columns]), cosine_similarity(a, b)[rows][:, columns])


def test_no_candidates_give_a_matrix_without_columns():
    assert cosine_similarity(normal(3, 4), normal(0, 4)).shape == (3, 0)
