"""How much each key mattered, against scipy's analysis of variance."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import f_oneway  # type: ignore[import-untyped]

from dcfl.comparisons.space import Choices, Range
from dcfl.comparisons.sweep_result import Importance, Level, importances

groups = st.lists(st.lists(st.floats(0, 100), min_size=2, max_size=5), min_size=2, max_size=4)


@given(groups)
def test_the_share_follows_from_f(scores: list[list[float]]) -> None:
    everything = np.concatenate(scores)
    if np.ptp(everything) < 1e-3 or any(np.ptp(part) < 1e-3 for part in scores):
        return
    share = Importance("k", tuple(Level("", tuple(part)) for part in scores)).share
    between, within = len(scores) - 1, len(everything) - len(scores)
    f = float(f_oneway(*scores).statistic)
    assert share == pytest.approx(max(between * (f - 1), 0) / (between * f + within), abs=1e-9)


def test_by_hand_on_a_grid() -> None:
    """One key makes a difference of 10, the other none."""
    dimensions = (Choices("a", (1, 2)), Choices("b", (1, 2)))
    points = [{"a": a, "b": b} for a in (1, 2) for b in (1, 2)]
    first, second = importances(dimensions[::-1], points, [50.0, 50.0, 60.0, 60.0])
    assert (first.key, first.share, first.best.label, first.best.mean) == ("a", 1.0, "2", 60.0)
    assert (second.key, second.share) == ("b", 0.0)


def test_a_range_is_seen_in_parts() -> None:
    """An optimum in the middle counts, though there is no trend."""
    dimension = Range("a", 0, 1)
    values = [index / 12 for index in range(12)]
    scores = [10.0 if 0.25 <= value < 0.75 else 0.0 for value in values]
    (found,) = importances([dimension], [{"a": value} for value in values], scores)
    assert [len(level.scores) for level in found.levels] == [3, 3, 3, 3]
    assert found.share == 1.0
    assert found.best.label == "0.25 to 0.416667"


def test_too_few_trials_say_nothing() -> None:
    dimension = Choices("a", (1, 2))
    (found,) = importances([dimension], [{"a": 1}, {"a": 2}], [1.0, 2.0])
    assert math.isnan(found.share)
    (same,) = importances([dimension], [{"a": 1}] * 5, [1.0] * 5)
    assert math.isnan(same.share)
