"""The loss and its limit against integrals and loops that are written down a second time."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcfl.errors import ConfigError
from dcfl.paper.theory import (
    Sphere,
    Study,
    draw_cosines,
    log_mean_exponential,
    measure,
    measure_theory,
    require_counts,
    summarise,
)


def study(sphere: Sphere, negatives: list[int], repetitions: int, seed: int = 0) -> Study:
    words = (sphere.temperature, [sphere.dimension], negatives, repetitions, seed)
    return measure_theory(*words)[0]


MANY = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
temperatures = st.floats(0.02, 20)
dimensions = st.integers(2, 400)
few = settings(max_examples=40, deadline=None)


def by_integration(steepness: float, dimension: int) -> float:
    """log of the mean of e^(k cos a), the angle a having the density sin(a)^(d-2)."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    angles = (nodes + 1) * math.pi / 2
    density = weights * np.sin(angles) ** (dimension - 2)
    heights = np.exp(steepness * (np.cos(angles) - 1))
    return steepness + math.log((density @ heights) / density.sum())


def exact_mean(sphere: Sphere, negatives: int, positives: int = 1) -> float:
    """The mean deviation in dimension 3 without drawing: log y is the integral over u of
    (e^-u - e^-uy)/u, and the mean of e^-uy is a product over independent negatives."""
    assert sphere.dimension == 3
    nodes, weights = np.polynomial.legendre.leggauss(200)
    mean = sphere.temperature * math.sinh(1 / sphere.temperature)
    sizes = np.exp(nodes / sphere.temperature) / mean
    positive = positives * math.exp(1 / sphere.temperature) / mean / negatives
    logs = np.linspace(-32, 12, 4001)
    u = np.exp(logs)
    one = np.exp(-np.outer(u / negatives, sizes)) @ weights / 2
    heights = np.exp(-u) - np.exp(-u * positive) * one**negatives  # vanish at both ends
    return float(heights.sum() * (logs[1] - logs[0]))


@pytest.mark.parametrize(
    ("dimension", "value"),
    [
        (3, -1.4047798079457772),  # -2 + log(sinh(2)/2)
        (2, -2 + math.log(2.279585302336067)),  # I_0(2)
        (4, -2 + math.log(1.590636854637329)),  # I_1(2)
    ],
)
def test_the_limit_at_known_values(dimension: int, value: float) -> None:
    assert Sphere(0.5, dimension).limit == pytest.approx(value, abs=1e-13)


@pytest.mark.parametrize("temperature", [0.01, 0.05, 0.2, 1.0, 1000.0])
def test_the_limit_in_three_dimensions_is_elementary(temperature: float) -> None:
    steep = 1 / temperature  # log sinh k = k + log(1 - e^-2k) - log 2
    elementary = math.log(temperature / 2) + math.log(-math.expm1(-2 * steep))
    assert Sphere(temperature, 3).limit == pytest.approx(elementary, rel=1e-12)


@few
@given(steepness=st.floats(0.05, 100), dimension=dimensions)
def test_the_limit_is_the_integral(steepness: float, dimension: int) -> None:
    found = log_mean_exponential(steepness, dimension)
    assert found == pytest.approx(by_integration(steepness, dimension), rel=1e-9, abs=1e-12)


def test_a_small_steepness_keeps_its_digits() -> None:
    assert log_mean_exponential(1e-6, 8) == pytest.approx(1e-12 / 16, rel=1e-9)  # k^2 / 2d
    assert log_mean_exponential(0.0, 8) == 0


@given(temperature=temperatures, dimension=dimensions)
def test_coefficients_are_consistent(temperature: float, dimension: int) -> None:
    sphere = Sphere(temperature, dimension)
    # The mean of squares is at most the largest value times the mean.
    assert 0 < sphere.variance <= (sphere.positive_weight - 1) * (1 + 1e-9)
    assert sphere.mean_coefficient > 0
    assert sphere.limit < 0


@few
@given(
    temperature=temperatures,
    dimension=dimensions,
    positives=st.integers(1, 30),
    negatives=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_a_point_is_what_a_loop_finds(
    temperature: float, dimension: int, positives: int, negatives: int, seed: int
) -> None:
    """The loss literally: -log of a positive's share, per positive, one draw after the other."""
    sphere = Sphere(temperature, dimension)
    cosines = draw_cosines(np.random.default_rng(seed), (5, negatives), dimension)
    deviations, positive_parts, kept = [], [], []
    for row in cosines:
        others = math.fsum(math.exp(t / temperature) for t in row)
        own = positives * math.exp(1 / temperature)
        loss = -math.log(math.exp(1 / temperature) / (own + others))
        deviations.append(loss - math.log(negatives) - sphere.limit)
        positive_parts.append(math.log((own + others) / others))
        kept.append(others / (own + others))
    ratios = np.exp(cosines / temperature - sphere.uniformity).mean(axis=1)
    point = summarise(sphere, negatives, ratios, positives)
    close = {"rel": 1e-7, "abs": 1e-9}
    assert point.rms == pytest.approx(math.sqrt(np.mean(np.square(deviations))), **close)
    assert point.spread == pytest.approx(np.std(deviations), **close)
    assert point.alignment_kept == pytest.approx(np.mean(kept), **close)
    # No draw leaves what is possible, and the first term bounds its part draw by draw.
    assert max(positive_parts) <= sphere.positive_bound(negatives, positives) * (1 + 1e-9)
    if positives == 1:
        possible = 2 / temperature + math.log1p(sphere.positive_bound(negatives))
        assert max(map(abs, deviations)) <= possible + 1e-9


@pytest.mark.parametrize("temperature", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(("positives", "negatives"), [(1, 1), (1, 8), (1, 64), (21, 42)])
def test_the_mean_deviation_is_the_exact_one(
    temperature: float, positives: int, negatives: int
) -> None:
    sphere = Sphere(temperature, 3)
    point = measure(sphere, negatives, 4000, seed=3, positives=positives)
    exact = exact_mean(sphere, negatives, positives)
    assert abs(point.deviation - exact) < 4.5 * point.deviation_error
    assert point.deviation_error < 0.02 * exact  # the check has teeth


def test_standard_errors_are_honest() -> None:
    """Over many seeds, the error of the mean is as large as it is said to be."""
    sphere = Sphere(0.5, 3)
    exact = exact_mean(sphere, 16)
    points = [measure(sphere, 16, 400, seed) for seed in range(200)]
    pulls = [(point.deviation - exact) / point.deviation_error for point in points]
    assert abs(np.mean(pulls)) < 0.35  # the regression's own bias is small beside the error
    assert 0.85 < np.std(pulls) < 1.15


def test_regressing_the_noise_out_is_what_makes_the_mean_visible() -> None:
    point = measure(Sphere(0.5, 3), 1024, 2000)
    plain = point.spread / math.sqrt(point.repetitions)
    assert plain > 0.2 * point.deviation
    assert point.deviation_error < 0.01 * point.deviation


@pytest.mark.parametrize("dimension", [2, 3, 5, 64])
def test_cosines_are_those_of_uniform_vectors(dimension: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((20_000, dimension))
    literal = vectors[:, 0] / np.linalg.norm(vectors, axis=1)
    cosines = draw_cosines(rng, (200, 100), dimension).ravel()
    grid = np.linspace(-1, 1, 41)
    shares = [np.searchsorted(np.sort(each), grid) / len(each) for each in (literal, cosines)]
    assert np.abs(shares[0] - shares[1]).max() < 0.02  # Kolmogorov and Smirnov, far in the tail
    assert np.mean(cosines**2) == pytest.approx(1 / dimension, rel=0.05)


@pytest.mark.parametrize("dimension", [3, 128])
def test_the_mean_falls_as_1_over_m_and_a_draw_as_its_root(dimension: int) -> None:
    sphere = Sphere(0.5, dimension)
    points = study(sphere, MANY, 1500).points
    for point in points[-3:]:
        m = point.negatives
        assert point.deviation * m == pytest.approx(sphere.mean_coefficient, rel=0.03)
        assert point.spread * m**0.5 == pytest.approx(sphere.spread_coefficient, rel=0.08)
    assert all(abs(p.deviation) < p.positive_bound for p in points)
    assert all(p.above_bound == 0 for p in points)


def test_the_numbers_of_the_specification() -> None:
    sphere = Sphere(0.5, 3)
    assert sphere.mean_coefficient == pytest.approx(3.54, abs=0.005)
    assert sphere.spread_coefficient == pytest.approx(1.04, abs=0.005)
    point = measure(sphere, 64, 4000)
    assert point.deviation == pytest.approx(0.054, abs=0.001)
    assert point.spread == pytest.approx(0.12, abs=0.008)
    assert (point.positive_bound, point.sampling_bound) == pytest.approx((0.853, 3.412), abs=1e-3)
    assert Sphere(0.2, 3).positive_bound(64) == pytest.approx(344, abs=0.5)


@pytest.mark.parametrize("temperature", [0.01, 0.05, 1000.0])
@pytest.mark.parametrize("dimension", [2, 3, 512])
def test_extreme_temperatures_stay_finite(temperature: float, dimension: int) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = study(Sphere(temperature, dimension), [1, 64, 512], 200)
    numbers = [value for p in (*found.points, *found.batches) for value in asdict(p).values()]
    assert all(math.isfinite(value) for value in numbers)
    assert all(point.spread > 0 for point in found.points)


def test_the_same_seed_gives_the_same_numbers_whatever_else_is_measured() -> None:
    sphere = Sphere(0.5, 7)
    alone = measure(sphere, 300, 1000, seed=5)
    assert study(sphere, [2, 300, 7], 1000, seed=5).points[2] == alone
    assert measure(sphere, 300, 1000, seed=6) != alone


@pytest.mark.parametrize("temperature", [0, -1, 0.001, math.nan, math.inf])
def test_temperatures_that_cannot_be_used(temperature: float) -> None:
    with pytest.raises(ConfigError, match=r"temperature must be from 0.01 to 1000"):
        Sphere(temperature, 3)


@pytest.mark.parametrize("dimension", [1, 0, 10**7])
def test_dimensions_that_cannot_be_used(dimension: int) -> None:
    with pytest.raises(ConfigError, match="dimension must be from 2"):
        Sphere(0.5, dimension)


@pytest.mark.parametrize(
    ("negatives", "repetitions", "seed", "said"),
    [
        ([], 1000, 0, "at least one"),
        ([4, 0], 1000, 0, "1 or more negatives each, not 0"),
        ([4], 99, 0, "repetitions must be at least 100, not 99"),
        ([10**6], 10**6, 0, "1.0e[+]12 draws"),
        ([4], 1000, -1, "seed must be 0 or more"),
    ],
)
def test_counts_that_cannot_be_used(
    negatives: list[int], repetitions: int, seed: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        require_counts(negatives, repetitions, seed)
