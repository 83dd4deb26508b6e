"""A run remembers a few numbers of its rounds; the rows are in rounds.jsonl."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcfl.errors import RunFolderError, RunMissing
from dcfl.experiment import FaultSettings
from dcfl.methods import METHODS
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from dcfl.runs.summaries import TOTALS, RoundsSoFar
from tests.engines.runs import Flat, federation, made_ready, trained
from tests.reliability import victims

COUNTS = st.integers(0, 3)


@st.composite
def some_rows(draw: st.DrawFn) -> list[RoundRow]:
    def row(round: int) -> RoundRow:
        counts: dict[str, Any] = {name: draw(COUNTS) for name in (*TOTALS, "used")}
        return RoundRow(
            round=round,
            accuracy=None,
            max_accuracy=None,
            ema_accuracy=None,
            loss=None,
            seconds=0.0,
            **counts,
        )

    return [row(round) for round in range(1, 1 + draw(st.integers(0, 12)))]


@given(some_rows())
def test_it_knows_what_a_list_of_the_rows_would_tell(rows: list[RoundRow]) -> None:
    so_far = RoundsSoFar()
    for row in rows:
        so_far = so_far.and_then(row)
    assert so_far.count == len(rows)
    assert so_far.last == (rows[-1] if rows else None)
    assert so_far.totals == {name: sum(row[name] for row in rows) for name in TOTALS}
    assert so_far.used == sum(row.used for row in rows)
    counted = [row for row in rows if row.used or row.sampled]  # nobody, by coins, is no failure
    for number in range(1, 5):
        last = counted[-number:]
        idle = len(last) == number and not any(row.used for row in last)
        assert (so_far.unchanged >= number) == idle


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_of_many_rounds_holds_no_rows(workers: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 40, "dataset": federation((4, 4)), "model": Flat()}
    run = made_ready(tmp_path / "run", METHODS["fedavg"](), workers, **settings)
    rows = []
    for row in run.rounds():
        rows.append(weakref.ref(row))
        assert sum(each() is not None for each in rows[:-1]) == 0
    assert len(run.result().rounds) == len(rows) == 40


def all_rows() -> list[RoundRow]:
    return [each for each in gc.get_objects() if type(each) is RoundRow]


def test_nor_does_a_resumed_run_hold_those_it_read(tmp_path: Path) -> None:
    victims.stopped(victims.experiment(tmp_path / "run", rounds=10), after=9)
    before = all_rows()  # of other tests
    resumed = Run.resume(tmp_path / "run", victims.DATA, victims.MODEL)
    assert [row.round for row in all_rows() if not any(row is old for old in before)] == [9]
    assert [row.round for row in resumed.rounds()] == [10]


def test_the_summary_adds_up_the_rows_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    what = victims.experiment(tmp_path / "run", rounds=12, faults=FaultSettings(crash=0.3))
    victims.stopped(what, after=5)
    resumed = Run.resume(tmp_path / "run", victims.DATA, victims.MODEL)
    assert [row.round for row in resumed.rounds()] == list(range(6, 13))
    summary, rows = resumed.result().summary, RecordedRun.open(tmp_path / "run").rounds
    assert summary.failed > 0
    assert {name: summary[name] for name in TOTALS} == {
        name: sum(row[name] for row in rows) for name in TOTALS
    }
    assert [summary.rounds, summary.max_accuracy] == [12, rows[-1].max_accuracy]


def test_a_result_reads_its_rows_when_they_are_asked_for(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": federation((4, 4)), "model": Flat()}
    run = made_ready(tmp_path / "run", METHODS["fedavg"](), 1, **settings)
    rows, result = list(run.rounds()), run.result()
    assert result.rounds == rows
    shutil.rmtree(run.folder)
    assert result.rounds == rows  # read once
    with pytest.raises(RunMissing, match=r"no config\.toml"):
        _ = run.result().rounds


def test_rows_are_read_one_by_one_without_a_half_one_at_the_end(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", METHODS["fedavg"](), 1, rounds=3, model=Flat())
    path = run.folder / "rounds.jsonl"
    first, last, _ = path.read_text().splitlines(keepends=True)
    path.write_text(first + last + "no JSON\n" + last[:-1])
    rows = RecordedRun.open(run.folder).each_round()
    assert [next(rows).round, next(rows).round] == [1, 2]
    with pytest.raises(Exception, match="is damaged"):  # found when it is reached
        next(rows)
    path.write_text(first + last[:-1])
    assert [row.round for row in RecordedRun.open(run.folder).each_round()] == [1]


@pytest.mark.parametrize("order", [(0, 0, 1, 2), (0, 2), (1, 0, 2), (0, 1, 2, 0, 1, 2)])
def test_rows_that_are_doubled_missing_or_mixed_up_are_refused(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    """Means over rounds and costs to a target would be of a run that was none."""
    run = trained(tmp_path / "run", METHODS["fedavg"](), 1, rounds=3, model=Flat())
    path = run.folder / "rounds.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[place] for place in order))
    with pytest.raises(RunFolderError, match=r"round \d where round \d should be"):
        _ = RecordedRun.open(run.folder).rounds
