"""Searches with equal budgets: which points they try."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.comparisons.searches import Axis, Exponents, NeighbourSearch, edges

LINE = NeighbourSearch([Axis("method.mu")])
PLANE = NeighbourSearch([Axis("method.mu"), Axis("method.temperature", 0.5, 2.5, first=(0,))])


def tried(
    search: NeighbourSearch, score: Callable[[Exponents], float], trials: int
) -> dict[Exponents, float]:
    """The points in their order, and their scores."""
    scores: dict[Exponents, float] = {}
    while len(scores) < trials:
        point = search.next_point(scores)
        assert point is not None
        scores[point] = score(point)
    return scores


@given(st.lists(st.floats(-9, 9), min_size=12, max_size=12), st.sampled_from([LINE, PLANE]))
def test_every_method_has_its_trials_whatever_comes_out(
    found: list[float], search: NeighbourSearch
) -> None:
    left = iter(found)
    points = tried(search, lambda point: next(left), 12)
    assert len({str(search.settings(point)) for point in points}) == 12


@pytest.mark.parametrize("peak", [-4.0, -1.0, 0.0, 2.0, 3.0])
def test_a_grid_grows_until_the_best_is_inside(peak: float) -> None:
    points = tried(LINE, lambda point: -abs(point[0] - peak), 8)
    best = max(points, key=points.__getitem__)
    assert best == (peak,)
    assert edges(best, points) == []
    assert [point[0] for point in points][:3] == [-1, 0, 1]


def test_a_best_that_stays_at_the_edge_is_known() -> None:
    points = tried(LINE, lambda point: point[0], 6)
    assert max(points) == (4.0,)
    assert edges(max(points), points) == [0]
    plane = tried(PLANE, lambda point: -abs(point[0]) - abs(point[1] + 3), 5)
    best = max(plane, key=plane.__getitem__)
    assert edges(best, plane) == [0, 1]  # one mu was tried at the last tau


def test_steps_are_halved_when_all_neighbours_are_known() -> None:
    points = tried(LINE, lambda point: -abs(point[0] - 0.4), 5)
    values = [LINE.settings(point)["method.mu"] for point in points]
    assert values == [0.1, 1.0, 10.0, 0.316, 3.16]


def test_what_diverged_is_never_the_best() -> None:
    points = tried(LINE, lambda point: -inf if point[0] > 0 else -point[0], 5)
    assert [*points] == [(-1,), (0,), (1,), (-2,), (-3,)]


def test_no_grid_grows_beyond_what_a_field_can_have() -> None:
    """FedCM's alpha is at most 1: where more would be better, steps to it become smaller."""
    alpha = Axis("method.alpha", 0.5)
    search = NeighbourSearch([alpha], lambda settings: settings["method.alpha"] <= 1)
    points = tried(search, lambda point: point[0], 12)
    values = [alpha.value(point[0]) for point in points]
    assert values[:5] == [0.05, 0.5, 0.158, 0.281, 0.889]
    assert len({*values}) == 12
    assert max(values) <= 1


def test_trials_that_have_no_score_yet_hold_the_next_ones_up() -> None:
    scores = {0.1: 50.0, 1.0: 60.0}
    made = LINE.tried(6, lambda settings: settings["method.mu"], scores.get)
    assert list(made.values()) == [0.1, 1.0, 10.0]
    scores[10.0] = 55.0
    assert list(LINE.tried(4, lambda s: s["method.mu"], scores.get).values())[3] == 0.316
    assert len(LINE.tried(6, lambda s: s["method.mu"], lambda value: 0.0)) == 6
