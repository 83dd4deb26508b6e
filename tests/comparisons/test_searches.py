"""Which points are tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.comparisons.searches import Search, drawn, key_of
from dcfl.comparisons.space import Choices, Range, Space
from dcfl.errors import ConfigError

TWO = Space((Choices("training.lr", (0.1, 0.2)), Choices("method.mu", (1, 5, 10))))
MIXED = Space((Range("training.lr", 1e-3, 1.0, log=True), Choices("method.mu", (1, 5))))


def test_a_grid_is_every_combination_once() -> None:
    points = Search().points(TWO)
    assert [tuple(point.values()) for point in points] == [
        (lr, mu) for lr in (0.1, 0.2) for mu in (1, 5, 10)
    ]


def test_a_grid_has_no_ranges() -> None:
    with pytest.raises(ConfigError, match="is a range"):
        Search().points(MIXED)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 5))
def test_more_draws_begin_with_the_same_ones(few: int, more: int, seed: int) -> None:
    points = list(drawn(MIXED, few + more, seed))
    assert points[:few] == list(drawn(MIXED, few, seed))
    assert len({key_of(point) for point in points}) == few + more


def test_other_seeds_draw_other_points() -> None:
    assert list(drawn(MIXED, 3, 0)) != list(drawn(MIXED, 3, 1))


def test_a_small_space_is_drawn_whole_and_then_no_more() -> None:
    points = Search("random", 50).points(TWO)
    assert sorted(map(key_of, points)) == sorted(map(key_of, Search().points(TWO)))


@pytest.mark.parametrize("text", ["", "random", "random 0", "tune x", "grid 3", "random 20 "])
def test_a_search_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Search.named(text)


def test_searches_by_name() -> None:
    assert Search.named("grid") == Search()
    assert Search.named("tune 7") == Search("tune", 7)
