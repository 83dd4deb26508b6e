import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_rel  # type: ignore[import-untyped]

from dcfl.comparisons.pairs import Pairs

A = {0: 50.0, 1: 52.0, 2: 51.0, 3: 55.0}
B = {0: 51.0, 1: 53.1, 2: 52.1, 3: 55.9}
C = {0: 50.5, 1: 51.0, 2: 53.0, 3: 54.0}
points = st.floats(0, 100).map(lambda value: round(value, 1))


def test_p_values_are_corrected_for_all_pairs() -> None:
    pairs = Pairs.of({"a": A, "b": B, "c": C})
    assert [(pair.method, pair.other) for pair in pairs.pairs] == [
        ("b", "a"),
        ("c", "a"),
        ("c", "b"),
    ]
    scores = {"a": A, "b": B, "c": C}
    raw = {
        (pair.method, pair.other): ttest_rel(
            list(scores[pair.method].values()), list(scores[pair.other].values())
        ).pvalue
        for pair in pairs.pairs
    }
    assert sorted(raw, key=lambda names: raw[names]) == [("b", "a"), ("c", "b"), ("c", "a")]
    steps = [3 * raw["b", "a"], 2 * raw["c", "b"], raw["c", "a"]]
    wanted = [steps[0], max(steps[:2]), max(steps)]
    found = [pairs.between(*names) for names in (("b", "a"), ("c", "b"), ("c", "a"))]
    assert [pair and pair.p_value for pair in found] == pytest.approx(wanted)
    assert [pair and pair.told_apart for pair in found] == [True, False, False]


def test_pairs_can_be_asked_for_both_ways_round() -> None:
    pairs = Pairs.of({"a": A, "b": B})
    (pair,) = pairs.pairs
    turned = pairs.between("a", "b")
    assert turned is not None
    assert (turned.method, turned.other, turned.p_value) == ("a", "b", pair.p_value)
    assert turned.paired.spread.mean == pytest.approx(-pair.paired.spread.mean)
    assert pairs.between("a", "a") is pairs.between("a", "z") is None


def test_pairs_without_a_common_seed_are_left_out_and_single_ones_are_not_tested() -> None:
    pairs = Pairs.of({"a": {0: 1.0}, "b": {1: 2.0}, "c": {0: 3.0, 1: 3.0}})
    assert [(pair.method, pair.p_value) for pair in pairs.pairs] == [("c", None), ("c", None)]
    assert not any(pair.told_apart for pair in pairs.pairs)


@settings(max_examples=30)
@given(
    st.lists(st.lists(points, min_size=3, max_size=3), min_size=2, max_size=5),
)
def test_correction_makes_no_p_value_smaller(scores: list[list[float]]) -> None:
    named = {str(index): dict(enumerate(values)) for index, values in enumerate(scores)}
    for pair in Pairs.of(named).pairs:
        assert pair.p_value is not None
        assert pair.p_value >= (pair.paired.p_value or 0)
        assert pair.to_json()["told_apart"] == (pair.p_value < 0.05)


def test_differences_to_a_reference_are_corrected_for_those_alone() -> None:
    pairs = Pairs.of({"a": A, "b": B, "c": C}, reference="b")
    assert [(pair.method, pair.other) for pair in pairs.pairs] == [("a", "b"), ("c", "b")]
    smaller, larger = sorted(pair.paired.p_value or 0 for pair in pairs.pairs)
    assert sorted(pair.p_value or 0 for pair in pairs.pairs) == pytest.approx(
        [2 * smaller, max(2 * smaller, larger)]
    )
    assert pairs.between("a", "c") is None


def test_the_bound_is_what_two_one_sided_tests_show() -> None:
    """At 2.5 % both reject a difference beyond the bound, and not one a little below it."""
    (pair,) = Pairs.of({"a": A, "b": B}, "a").pairs
    bound, differences = pair.paired.bound, pair.paired.differences
    assert bound is not None
    above = ttest_1samp(differences, bound, alternative="less").pvalue
    below = ttest_1samp(differences, -bound, alternative="greater").pvalue
    assert max(above, below) == pytest.approx(0.025)
