"""Ranks over data sets against the numbers of Demsar's paper, and Friedman's formula."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, friedmanchisquare  # type: ignore[import-untyped]

from dcfl.comparisons.standing import Ranking


def named(table: list[list[float]]) -> dict[str, dict[str, float]]:
    """Rows are data sets, columns methods."""
    return {
        f"task{index}": {f"m{column}": value for column, value in enumerate(row)}
        for index, row in enumerate(table)
    }


@pytest.mark.parametrize(
    ("methods", "tasks", "quantile"),
    [(3, 14, 2.343), (4, 14, 2.569), (5, 30, 2.728), (10, 6, 3.164)],
)
def test_the_critical_difference_is_demsars(methods: int, tasks: int, quantile: float) -> None:
    """His table 5a; section 3.2.2 has 1.25 for four classifiers on 14 data sets."""
    ranking = Ranking({str(index): 1.0 + index for index in range(methods)}, tasks, 0.01)
    wanted = quantile * math.sqrt(methods * (methods + 1) / (6 * tasks))
    assert ranking.critical_difference == pytest.approx(wanted, rel=1e-3)
    if (methods, tasks) == (4, 14):
        assert round(ranking.critical_difference, 2) == 1.25


@given(st.integers(3, 6), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_friedmans_test(methods: int, tasks: int, seed: int) -> None:
    table = np.random.default_rng(seed).permuted(
        np.tile(np.arange(methods, dtype=float), (tasks, 1)), axis=1
    )
    ranking = Ranking.of(named(table.tolist()))
    assert ranking is not None
    means = np.array([ranking.mean_ranks[f"m{column}"] for column in range(methods)])
    assert means == pytest.approx(methods - table.mean(axis=0))  # the highest score has rank 1
    statistic = 12 * tasks / (methods * (methods + 1)) * (means**2).sum() - 3 * tasks * (
        methods + 1
    )
    assert ranking.p_value == pytest.approx(chi2.sf(statistic, methods - 1), abs=1e-9)
    assert ranking.p_value == pytest.approx(friedmanchisquare(*table.T).pvalue)
    assert list(ranking.mean_ranks.values()) == sorted(means)


def test_equal_scores_share_their_ranks() -> None:
    ranking = Ranking.of(named([[5.0, 5.0, 1.0], [9.0, 8.0, 7.0]]))
    assert ranking is not None
    assert ranking.mean_ranks == {"m0": 1.25, "m1": 1.75, "m2": 3.0}
    level = Ranking.of(named([[5.0, 5.0, 5.0], [9.0, 9.0, 9.0]]))
    assert level is not None
    assert (level.p_value, level.told_apart) == (1.0, False)


def test_bars_join_who_cannot_be_told_apart() -> None:
    """With four methods on 14 data sets, 1.25 ranks are the critical difference."""
    ranks = {"a": 1.0, "b": 2.0, "c": 2.2, "d": 3.8}
    ranking = Ranking(ranks, 14, 0.001)
    assert ranking.cliques() == [["a", "b", "c"]]
    assert ranking.level_with_the_best == ["b", "c"]
    assert Ranking({**ranks, "c": 2.6}, 14, 0.001).cliques() == [["a", "b"], ["b", "c"], ["c", "d"]]
    # Without a difference by Friedman's test, nobody looks for one between two.
    assert Ranking(ranks, 14, 0.2).cliques() == [["a", "b", "c", "d"]]


def test_too_few_methods_or_data_sets_have_no_ranking() -> None:
    assert Ranking.of({}) is None
    assert Ranking.of(named([[1.0, 2.0, 3.0]])) is None
    assert Ranking.of(named([[1.0, 2.0], [1.0, 2.0]])) is None
    partly = named([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0]])
    ranking = Ranking.of(partly)
    assert ranking is not None
    assert list(ranking.mean_ranks) == ["m2", "m1", "m0"]  # m3 lacks a data set
    assert Ranking.of(named([[1.0, math.nan, 3.0], [1.0, 2.0, 3.0]])) is None
