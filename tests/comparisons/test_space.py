"""What a sweep varies, as people write it."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.comparisons.space import (
    Choices,
    Range,
    fitted,
    read_setting,
    split_settings,
    split_values,
)
from dcfl.errors import ConfigError, DCFLError
from dcfl.experiment import Experiment

KEY = "training.lr"
finite = st.floats(-1e6, 1e6, allow_nan=False)
positive = st.floats(1e-9, 1e6)


@given(st.lists(finite, min_size=2, max_size=6, unique=True))
def test_listed_numbers_are_what_was_written(values: list[float]) -> None:
    assert read_setting(f"{KEY}={','.join(map(repr, values))}") == Choices(KEY, tuple(values))


@given(positive, positive, st.booleans(), st.floats(0, 1))
def test_a_range_gives_numbers_inside_it(one: float, other: float, log: bool, share: float) -> None:
    low, high = sorted((one, other))
    if low == high:
        return
    found = read_setting(f"{KEY}={low!r}:{high!r}{':log' if log else ''}")
    assert found == Range(KEY, low, high, log)
    assert isinstance(found, Range)
    assert low <= found.at(share) <= high
    assert (found.at(0.0), found.at(1.0)) == pytest.approx((low, high), rel=1e-3)
    middle = math.sqrt(low * high) if log else (low + high) / 2
    assert found.at(0.5) == pytest.approx(middle, rel=1e-3)


@given(st.integers(1, 10**6), st.integers(1, 1000), st.booleans(), st.floats(0, 1))
def test_whole_numbers_stay_whole(low: int, width: int, log: bool, share: float) -> None:
    found = read_setting(f"training.epochs={low}:{low + width}{':log' if log else ''}:int")
    assert isinstance(found, Range)
    value = found.at(share)
    assert isinstance(value, int)
    assert low <= value <= low + width


def test_each_whole_number_is_as_likely_as_the_others() -> None:
    found = Range(KEY, 1, 4, whole=True)
    drawn = [found.at((index + 0.5) / 400) for index in range(400)]
    assert [drawn.count(value) for value in (1, 2, 3, 4)] == [100] * 4


@given(st.text(max_size=30))
def test_whatever_is_written_it_is_read_or_refused(text: str) -> None:
    with suppress(DCFLError):
        split_settings([f"{KEY}={text}"])


@pytest.mark.parametrize(
    "text",
    ["1:0.1", "1:1", "0:1:log", "-1:1:log", "1:2:lg", "1:2:log:log", "1:", "1:x", "1.5:3:int",
     "1:2:3", "1,,2", "1,", "1,1", "1,1.0", "0.1:1e999"],
)  # fmt: skip
def test_what_is_no_range_and_no_list_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=KEY):
        split_settings([f"{KEY}={text}"])


@pytest.mark.parametrize(
    "setting",
    ["engine.device=cuda:0,1", "data.path=a,b", "data.dataset=folder:x", "training.lr=0.1",
     'data.class_names=["a", "b"]', "data.dataset='a,b'", "output.dir=1:2"],
)  # fmt: skip
def test_one_value_is_one_value(setting: str) -> None:
    assert read_setting(setting) is None


def test_lists_of_lists_and_of_names() -> None:
    windows = read_setting("data.window=[40, 80],[40, 400]")
    assert windows == Choices("data.window", ((40, 80), (40, 400)))
    methods = read_setting("method.name=fedavg, 'dcfl-pw'")
    assert methods == Choices("method.name", ("fedavg", "dcfl-pw"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["training.lr=0.1"], "nothing to vary"),
        (["training.lr=0.1,0.2", "training.lr=1:2"], "varied twice"),
        (["federation.seed=0,1"], "--seeds"),
        (["data.seed=0,1"], "--seeds"),
        (["data.holdout=0.1,0.2"], "one value"),
        (["lr=0.1,0.2"], "section.key=value"),
    ],
)
def test_what_cannot_be_varied(settings: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        split_settings(settings)


def test_a_key_that_takes_whole_numbers_gets_them() -> None:
    _, space = split_settings(["training.epochs=1:3", "training.lr=1:3", "data.crop=0:2"])
    epochs, rate, crop = fitted(space, Experiment()).dimensions
    assert epochs == Range("training.epochs", 1, 3, whole=True)
    assert rate == Range("training.lr", 1, 3)
    assert crop == Range("data.crop", 0, 2, whole=True)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("training.lrr=0.1,0.2", "did you mean lr"),
        ("method.muu=0.1,0.2", "did you mean mu"),
        ("training.epochs=0:3", "at least 1"),
        ("training.epochs=0.5:3", "whole"),
        ("training.lr=0.1,x", "must be a number"),
    ],
)
def test_the_experiment_must_take_it(setting: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fitted(split_settings([setting])[1], Experiment())


def test_fields_of_methods_that_are_varied_are_left_to_the_points() -> None:
    _, space = split_settings(["method.name=fedavg,moon", "method.mu=0.1,1"])
    assert fitted(space, Experiment()) == space


def test_from_python_lists_and_ranges_vary() -> None:
    fixed, space = split_values(
        {"training.lr": [0.1, 0.2], "method.mu": "0.1:1:log", "federation.rounds": 3}
    )
    assert fixed == {"federation": {"rounds": 3}}
    assert space.described() == ["training.lr = 0.1, 0.2", "method.mu = 0.1:1:log"]
