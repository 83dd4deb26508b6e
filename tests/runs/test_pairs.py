"""Paired differences against scipy's own tests, and Holm's correction against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp  # type: ignore[import-untyped]

from dcfl.runs.pairs import Paired, holm

points = st.floats(-20, 20).map(lambda value: round(value, 2))


@given(st.lists(points, min_size=2, max_size=8).filter(lambda values: len(set(values)) > 1))
def test_the_interval_and_the_p_value_are_students(values: list[float]) -> None:
    paired, oracle = Paired(tuple(values)), ttest_1samp(values, 0.0)
    low, high = oracle.confidence_interval(0.95)
    assert paired.interval == pytest.approx((low, high))
    assert paired.p_value == pytest.approx(oracle.pvalue)
    assert paired.wins == sum(value > 0 for value in values)


def test_one_seed_tells_nothing_and_equal_differences_everything() -> None:
    assert (Paired((1.0,)).interval, Paired((1.0,)).p_value) == (None, None)
    assert (Paired((1.0, 1.0)).interval, Paired((1.0, 1.0)).p_value) == ((1.0, 1.0), 0.0)
    assert Paired((0.0, 0.0)).p_value == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm(values: list[float]) -> None:
    corrected = holm({str(index): value for index, value in enumerate(values)})
    assert list(corrected) == [str(index) for index in range(len(values))]
    ordered = sorted(values)
    for index, value in enumerate(values):
        # The largest of what all hypotheses up to this one are multiplied to.
        steps = [(len(values) - rank) * p for rank, p in enumerate(ordered) if p <= value]
        assert corrected[str(index)] == pytest.approx(min(1.0, max(steps)))
