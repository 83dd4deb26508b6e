"""Paired differences against scipy's own tests, tables of power, and simulated experiments."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_rel  # type: ignore[import-untyped]

from dcfl.comparisons.pairs import Paired, Spread, holm

points = st.floats(-20, 20).map(lambda value: round(value, 2))
several = st.lists(points, min_size=2, max_size=8)


def different(values: list[float]) -> bool:
    return max(values) - min(values) > 0.005


@given(several.filter(different))
def test_the_interval_and_the_p_value_are_students(values: list[float]) -> None:
    paired, oracle = Paired(tuple(values)), ttest_1samp(values, 0.0)
    low, high = oracle.confidence_interval(0.95)
    assert paired.interval == pytest.approx((low, high))
    assert paired.p_value == pytest.approx(oracle.pvalue)


def test_two_methods_are_paired_by_seed() -> None:
    mine = {0: 61.0, 1: 64.5, 2: 60.2, 3: 66.0, 9: math.nan}
    theirs = {3: 64.0, 2: 59.9, 1: 62.0, 0: 60.5, 7: 1.0, 9: 50.0}
    paired = Paired.of(mine, theirs)
    assert paired is not None
    assert paired.differences == pytest.approx((0.5, 2.5, 0.3, 2.0))
    oracle = ttest_rel([61.0, 64.5, 60.2, 66.0], [60.5, 62.0, 59.9, 64.0])
    assert paired.p_value == pytest.approx(oracle.pvalue)
    assert paired.interval == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    assert Paired.of({0: 1.0}, {1: 1.0}) is None
    assert Paired.of({0: math.nan}, {0: 1.0}) is None


def test_by_hand() -> None:
    """1, 2 and 3: the mean is 2, the deviation 1, its error 1 / sqrt(3); t(2) = 4.3027."""
    paired = Paired((1.0, 2.0, 3.0))
    assert paired.spread == Spread(2.0, 1.0, 3)
    assert paired.interval == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)
    # With two degrees of freedom, p = 1 - t / sqrt(t^2 + 2).
    assert paired.p_value == pytest.approx(1 - 12**0.5 / 14**0.5)


@given(several)
def test_the_other_way_round_it_is_mirrored(values: list[float]) -> None:
    paired, turned = Paired(tuple(values)), -Paired(tuple(values))
    assert (paired.wins, paired.ties, paired.losses) == (turned.losses, turned.ties, turned.wins)
    assert paired.wins + paired.ties + paired.losses == paired.seeds == len(values)
    assert paired.p_value == pytest.approx(turned.p_value)
    assert (paired.interval is None) == (turned.interval is None)
    if paired.interval and turned.interval:
        assert paired.interval == pytest.approx((-turned.interval[1], -turned.interval[0]))


def test_one_seed_tells_nothing() -> None:
    one = Paired((1.0,))
    assert (one.interval, one.p_value) == (None, None)


def test_equal_differences_do_not_prove_that_there_is_no_scatter() -> None:
    """A t-test would be certain (p = 0) of two runs that both differ by the same ten images."""
    rounding = 1e-13
    two = Paired((1.0, 1.0 + rounding))
    assert two.interval is None
    assert two.p_value == 0.5  # two coins fall on the same side
    assert Paired((-1.0,) * 6).p_value == 1 / 32
    nothing = Paired((0.0, rounding, -rounding))
    assert (nothing.p_value, nothing.ties) == (1.0, 3)


# How often an interval is right -------------------------------------------------------------------


def covered(seeds: int, repeats: int) -> float:
    """In how many of 100 experiments the interval contains the true difference."""
    rng = np.random.default_rng(seeds)
    truth, hits = 0.7, 0
    for _ in range(repeats):
        interval = Paired(tuple(rng.normal(truth, 1.3, seeds))).interval
        assert interval is not None
        hits += interval[0] <= truth <= interval[1]
    return 100 * hits / repeats


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_interval_covers_the_truth(seeds: int) -> None:
    assert 93 <= covered(seeds, 1000) <= 97


@pytest.mark.parametrize("seeds", [3, 8])
def test_without_a_difference_one_test_in_twenty_finds_one(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    p_values = [Paired(tuple(rng.normal(0, 1, seeds))).p_value or 0 for _ in range(1000)]
    assert 3 <= 100 * np.mean(np.array(p_values) < 0.05) <= 7


# Many comparisons ---------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm(values: list[float]) -> None:
    corrected = holm({str(index): value for index, value in enumerate(values)})
    assert list(corrected) == [str(index) for index in range(len(values))]
    ordered = sorted(values)
    for index, value in enumerate(values):
        # The largest of what all hypotheses up to this one are multiplied to.
        steps = [(len(values) - rank) * p for rank, p in enumerate(ordered) if p <= value]
        assert corrected[str(index)] == pytest.approx(min(1.0, max(steps)))
