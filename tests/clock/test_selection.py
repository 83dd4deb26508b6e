"""Who is asked, against transcriptions of what the papers say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dcfl.clock.selection import SELECTIONS, Asking, Selection, utilities
from dcfl.clock.state import Known
from dcfl.federation import Sampling, sample_cohort

SIZES: NDArray[np.int64] = np.array([1, 1, 1, 1, 1, 1, 1, 93])


def asking(
    round: int = 1,
    known: Mapping[int, Known] | None = None,
    free: Callable[[int], bool] = lambda client: True,
    sizes: NDArray[np.int64] = SIZES,
) -> Asking:
    return Asking([0, round], round, len(sizes), sizes, known or {}, free)


def chosen(name: Selection, size: int, rounds: int = 300, **more: object) -> Counter[int]:
    counted: Counter[int] = Counter()
    for round in range(1, rounds + 1):
        found = SELECTIONS[name](asking(round, **more), size)  # type: ignore[arg-type]
        assert len({*found}) == len(found)
        counted.update(found)
    return counted


def test_uniform_is_the_plain_schedule_where_everybody_is_free() -> None:
    for round in range(1, 30):
        one = asking(round, sizes=np.ones(500, dtype=np.int64))
        assert sorted(SELECTIONS["uniform"](one, 25)) == sample_cohort(500, 0.05, 0, round)


def test_the_plain_schedule_is_that_of_the_clock_without_a_client_too() -> None:
    gone = Sampling(without=(3, 40, 41))
    for round in range(1, 60):
        one = replace(asking(round, sizes=np.ones(50, dtype=np.int64)), without=gone.without)
        plain = sample_cohort(50, 0.2, 0, round, gone)
        assert sorted(SELECTIONS["uniform"](one, 10)) == plain


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_client_that_is_left_out_is_never_asked_and_its_place_goes_to_another(
    name: Selection,
) -> None:
    """Who has not been asked so far: nobody else's place depends on it."""
    known = {client: Known(1, 1.0 + client, 5, 1.0) for client in range(0, 8, 2)}
    changed = 0
    for round in range(1, 60):
        for size in (1, 2, 3, 6):
            one = asking(round, known, lambda client: client != 4)
            whole = SELECTIONS[name](one, size)
            found = SELECTIONS[name](replace(one, without=(7,)), size)
            assert 7 not in found
            assert len({*found}) == len(found) == min(size, 6)
            assert {*found} <= {0, 1, 2, 3, 5, 6}
            if 7 not in whole:
                assert found == whole
            changed += 7 in whole
    assert changed


@pytest.mark.parametrize("name", SELECTIONS)
def test_only_who_is_free_is_asked_as_many_as_there_are(name: Selection) -> None:
    known = {client: Known(1, 1.0, 5, 1.0) for client in range(0, 8, 2)}
    for size in (1, 2, 3, 8):
        for round in range(1, 20):
            one = asking(round, known, lambda client: client in (1, 2, 6))
            found = SELECTIONS[name](one, size)
            assert {*found} <= {1, 2, 6}
            assert len(found) == min(size, 3)


def test_by_samples_goes_by_samples() -> None:
    counted = chosen("samples", 1)
    assert counted[7] / 300 == pytest.approx(0.93, abs=0.05)


def test_power_of_choice_takes_the_candidates_with_the_highest_losses() -> None:
    """Of all eight as candidates: two that were never asked, then the highest losses."""
    known = {client: Known(1, float(client), 5, 1.0) for client in range(6)}
    assert {*SELECTIONS["power-of-choice"](asking(3, known), 4)} == {6, 7, 5, 4}


def transcribed_utility(one: Known, round: int, preferred: float) -> float:
    """Oort, Eq. 1 and Algorithm 1, lines 9 to 12, with alpha = 2."""
    statistical = one.examples * math.sqrt(one.loss**2)
    utility = statistical + math.sqrt(0.1 * math.log(round) / one.round)
    if preferred < one.seconds:
        utility *= (preferred / one.seconds) ** 2
    return utility


def test_oorts_utility_is_its_papers() -> None:
    known = {
        0: Known(1, 0.5, 10, 1.0),
        1: Known(4, 2.0, 10, 3.0),
        2: Known(2, 2.0, 30, 12.0),
    }
    assert utilities(known, 9) == pytest.approx(
        {client: transcribed_utility(one, 9, 3.0) for client, one in known.items()}
    )
    assert utilities({}, 9) == {}


def test_oort_explores_less_and_less_and_exploits_what_is_useful() -> None:
    sizes = np.ones(40, dtype=np.int64)
    known = {client: Known(1, 9.0 if client < 4 else 0.1, 10, 1.0) for client in range(20)}
    early = SELECTIONS["oort"](asking(1, known, sizes=sizes), 10)
    late = SELECTIONS["oort"](asking(200, known, sizes=sizes), 10)
    assert sum(client not in known for client in early) == 9
    assert sum(client not in known for client in late) == 2
    assert {0, 1, 2, 3} <= {*late}
