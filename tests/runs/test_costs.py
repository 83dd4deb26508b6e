"""The arithmetic of an estimate, against costs that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.runs.estimate import Crowd, VisitCost, fitted, images_within, makespan, steps_of

seconds = st.floats(1e-4, 10)
costs = st.builds(VisitCost, visit=seconds, step=seconds, image=seconds, passed=seconds)


def one_by_one(images: int, batch_size: int) -> int:
    """Steps of an epoch, counted as the loop over batches takes them."""
    left, steps = images, 0
    while left > 0:
        steps += min(left, batch_size) > 1
        left -= batch_size
    return steps


@given(st.integers(0, 300), st.integers(2, 70))
def test_steps_are_those_of_the_loop(images: int, batch_size: int) -> None:
    assert steps_of(images, batch_size) == one_by_one(images, batch_size)


def test_a_visit_is_the_sum_of_its_parts() -> None:
    cost = VisitCost(visit=1000.0, step=100.0, image=10.0, passed=1.0)
    # 5 images in batches of 2: two steps, and a single image that is left out.
    assert cost.seconds(5, batch_size=2, epochs=3) == 1000 + 3 * (2 * 100 + 5 * 10) + 5
    assert cost.scaled(2).seconds(5, 2, 3) == 2 * cost.seconds(5, 2, 3)


@given(costs, st.integers(8, 64), st.integers(2, 500), st.integers(1, 5))
def test_costs_are_found_again(cost: VisitCost, batch: int, images: int, epochs: int) -> None:
    """From visits of one epoch, for clients of any size and any number of epochs."""
    visits = {size: cost.seconds(size, batch, 1) for size in (2, batch, 2 * batch)}
    found = fitted(visits, batch, cost.passed)
    wanted = cost.seconds(images, batch, epochs)
    assert found.seconds(images, batch, epochs) == pytest.approx(wanted, rel=1e-6)


@given(costs, st.integers(4, 64), st.data())
def test_small_clients_need_two_sizes(cost: VisitCost, largest: int, data: st.DataObject) -> None:
    visits = {size: cost.seconds(size, 64, 1) for size in (2, largest)}
    found = fitted(visits, 64, cost.passed)
    images = data.draw(st.integers(2, largest))
    assert found.seconds(images, 64, 1) == pytest.approx(cost.seconds(images, 64, 1), rel=1e-6)


@given(st.lists(seconds, min_size=3, max_size=3), st.integers(0, 100), st.floats(0, 1))
def test_noise_gives_no_negative_cost(times: list[float], images: int, passed: float) -> None:
    found = fitted(dict(zip((2, 64, 128), times, strict=True)), 64, passed)
    assert min(found.visit, found.step, found.image) >= 0
    assert found.seconds(images, 64, 5) >= 0


@given(costs, seconds, st.integers(2, 500), st.integers(2, 64), st.integers(1, 5))
def test_as_many_images_as_there_is_time_for(
    cost: VisitCost, limit: float, largest: int, batch: int, epochs: int
) -> None:
    most = images_within(limit, cost, largest, batch, epochs)
    assert most == largest or most % batch == 0
    more = largest if most + batch > largest else most + batch
    if most:
        assert cost.seconds(most, batch, epochs) <= limit
    if most < largest:
        assert cost.seconds(more, batch, epochs) > limit


@given(st.lists(seconds, min_size=1, max_size=20), st.integers(1, 5), st.lists(seconds, max_size=5))
def test_nobody_idles_while_work_is_left(
    tasks: list[float], workers: int, fillers: list[float]
) -> None:
    total, longest = sum(tasks) + sum(fillers), max([*tasks, *fillers])
    took = makespan(tasks, workers, fillers)
    assert max(total / workers, longest) - 1e-9 <= took <= total / workers + longest + 1e-9
    assert makespan(tasks, 1, fillers) == pytest.approx(total)


@given(
    st.lists(seconds, min_size=1, max_size=9), st.integers(2, 4), st.floats(1, 4), st.integers(1, 5)
)
def test_a_crowd_is_slower_than_one_alone(
    tasks: list[float], workers: int, alone: float, size: int
) -> None:
    crowd = Crowd(size, min(alone, size))
    took, crowded = makespan(tasks, workers, crowd=crowd), makespan(tasks, workers)
    assert crowded / crowd.alone - 1e-9 <= took <= crowded + 1e-9


def test_whoever_is_left_alone_is_faster() -> None:
    shared = Crowd(2, 2.0)  # two workers on one core
    assert makespan([1.0] * 5, 2, crowd=shared) == 2.5
    assert makespan([1.0], 2, crowd=shared) == 0.5
    assert makespan([1.0] * 5, 1, crowd=shared) == 5.0  # beside somebody else's work


def test_test_images_fill_the_gaps() -> None:
    assert makespan([3.0, 2.0, 2.0], 2) == 4.0
    assert makespan([3.0, 2.0, 2.0], 2, [1.0]) == 4.0  # beside the last client
    assert makespan([2.0, 2.0], 2, [1.0, 1.0]) == 3.0
    assert makespan([], 2) == 0.0
