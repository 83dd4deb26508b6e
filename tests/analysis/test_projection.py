import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.analysis import similarity as picture
from dcfl.analysis.similarity import effective_rank, look_at, principal_axes


def cloud(n: int = 80, d: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator) * torch.arange(1, d + 1) + 1


def labels(n: int = 80) -> torch.Tensor:
    return torch.arange(n) % 3


def test_axes_are_the_eigenvectors_of_the_covariance() -> None:
    rows = cloud().double().numpy()
    centred = rows - rows.mean(axis=0)
    directions, variances = principal_axes(centred)
    covariance = np.cov(rows.T, bias=True)
    assert directions @ directions.T == pytest.approx(np.eye(6), abs=1e-12)
    assert np.sort(variances)[::-1] == pytest.approx(variances)
    for direction, variance in zip(directions, variances, strict=True):
        assert covariance @ direction == pytest.approx(variance * direction)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), flips=st.integers(0, 63))
def test_the_sign_of_an_axis_does_not_depend_on_the_decomposition(seed: int, flips: int) -> None:
    rows = cloud(seed=seed).double().numpy()
    centred = rows - rows.mean(axis=0)
    directions, _ = principal_axes(centred)
    again, _ = principal_axes(centred[np.random.default_rng(flips).permutation(len(rows))])
    assert again == pytest.approx(directions, abs=1e-8)
    assert (directions[np.arange(6), np.abs(directions).argmax(axis=1)] > 0).all()


def test_the_plane_is_the_unit_vectors_seen_along_two_axes() -> None:
    embeddings = cloud()
    plane, dimensions = look_at(embeddings, labels())
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1).numpy()
    values, vectors = np.linalg.eigh(np.cov(unit.T, bias=True))
    for axis in (0, 1):
        expected = (unit - unit.mean(axis=0)) @ vectors[:, -1 - axis]
        sign = math.copysign(1, expected @ plane.points[:, axis])
        assert plane.points[:, axis] == pytest.approx(sign * expected)
        assert plane.explained[axis] == pytest.approx(values[-1 - axis] / values.sum())
    shares = values / values.sum()
    assert dimensions.effective_rank == pytest.approx(
        math.exp(-sum(share * math.log(share) for share in shares))
    )
    assert dimensions.explained[-1] == pytest.approx(1)


@pytest.mark.parametrize("equal", [1, 2, 7])
def test_effective_rank_of_equal_variances_is_their_number(equal: int) -> None:
    variances = np.array([0.3] * equal + [0.0] * 3)
    assert effective_rank(variances) == pytest.approx(equal)
    assert effective_rank(variances) == pytest.approx(effective_rank(100 * variances))


def test_dead_and_constant_dimensions_are_told_apart() -> None:
    embeddings = cloud(d=6).abs()
    embeddings[:, 1] = 0.0
    embeddings[:, 4] = 0.7
    found = look_at(embeddings, labels())[1]
    assert (found.width, found.zero, found.still) == (6, 1, 2)
    assert found.moving_share == pytest.approx(4 / 6)
    assert found.rank_share == pytest.approx(found.effective_rank / 6)


def test_one_dimension_and_no_variance_at_all() -> None:
    plane, dimensions = look_at(torch.ones(5, 3), labels(5))
    assert dimensions.effective_rank == 0
    assert dimensions.still == 3
    assert not plane.points.any()
    plane, dimensions = look_at(torch.tensor([[1.0], [-2.0], [3.0]]), labels(3))
    assert plane.points.shape == (3, 2)
    assert dimensions.effective_rank == pytest.approx(1)


def test_more_dimensions_than_images() -> None:
    plane, dimensions = look_at(cloud(n=4, d=6), labels(4))
    assert plane.points.shape == (4, 2)
    assert 1 <= dimensions.effective_rank <= 3


def test_a_picture_has_so_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "SHOWN", 10)
    whole = look_at(cloud(), labels())[0]
    assert whole.points.shape == (10, 2)
    assert len(whole.labels) == 10
