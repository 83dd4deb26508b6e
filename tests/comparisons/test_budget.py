"""No trial begins that would not end in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcfl.comparisons import cell_costs
from dcfl.comparisons import trials as budget
from dcfl.comparisons.cell_costs import CellMeter, planned_costs
from dcfl.comparisons.cells import Cell, CellFolder
from dcfl.comparisons.trials import Budget, seconds_in
from dcfl.engines.placement import Placement
from dcfl.errors import ConfigError
from dcfl.runs.estimate import Rates
from dcfl.runs.prepare import Prepared
from tests.comparisons.small_sweeps import tiny_sweep
from tests.paper.hand_made import cell_folders_in, cells_of, pretend
from tests.runs.rates import RATES


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1.5m", 90), ("2 min", 120), ("2h", 7200), (".5d", 43200)],
)
def test_times(text: str, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "0h", "-1h", "two hours", "1e3s", "2h3m"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="--budget"):
        seconds_in(text)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A cell is estimated to take 10 seconds."""
    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    monkeypatch.setattr(CellMeter, "seconds", lambda self, cell: 10.0)
    return clock


def cells(tmp_path: Path) -> list[CellFolder[Cell]]:
    return [*tiny_sweep(tmp_path).todo]


def test_a_trial_begins_if_it_and_the_chosen_one_would_end(clock: Clock, tmp_path: Path) -> None:
    one, *_ = cells(tmp_path)
    allowed = Budget(50.0, processes=2, seeds=3)  # the chosen point takes two turns of 10 seconds
    clock.now = 20.0
    assert allowed.allows(one)
    clock.now = 20.1
    assert not allowed.allows(one)
    assert Budget(None, 2, 3).allows(one)


def test_a_busy_machine_is_learnt_from(clock: Clock, tmp_path: Path) -> None:
    one, other, *_ = cells(tmp_path)
    allowed = Budget(100.0, processes=1, seeds=1)
    assert allowed.allows(one)
    clock.now = 30.0  # three times as long
    allowed.finished(one)
    clock.now = 40.0
    assert allowed.allows(other)
    clock.now = 40.1
    assert not allowed.allows(other)


def test_a_sweep_that_runs_out_of_time(clock: Clock, tmp_path: Path) -> None:
    def passing(news: object) -> None:
        clock.now += 5.0  # a round, or the end of a cell

    result = tiny_sweep(tmp_path).carry_out(1, limit=40.0, show=passing)  # 15 seconds a trial
    assert result.out_of_time
    assert [trial.state for trial in result.trials] == ["finished", "unfinished"]
    assert result.test.spread is not None
    more = tiny_sweep(tmp_path).carry_out(1)
    assert [trial.state for trial in more.trials] == ["finished"] * 4
    with pytest.raises(ConfigError, match="not even one trial"):
        tiny_sweep(tmp_path / "none").carry_out(1, limit=19.0)


Measured = list[tuple[str, int]]  # the method, and how many processes trained at once


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    found: Measured = []

    def measure(prepared: Prepared, placement: Placement | None = None) -> Rates:
        processes = len((placement or prepared.placement).devices)
        found.append((prepared.experiment.method.name, processes))
        return RATES

    monkeypatch.setattr(cell_costs, "measure", measure)
    return found


def test_each_kind_is_measured_once(measured: Measured, tmp_path: Path) -> None:
    cells = cell_folders_in(tmp_path, cells_of("tiny-imagenet"))
    shown: list[str] = []
    costs = planned_costs(cells, 2, shown.append)
    methods = {cell.cell.experiment.method.name for cell in cells}
    assert sorted(measured) == sorted((name, 2) for name in methods)
    assert len(shown) == len(methods)
    assert costs.by_cell.keys() == {cell.name for cell in cells}
    assert costs.seconds == pytest.approx(sum(costs.by_cell.values()) / 2)
    assert costs.peak_bytes > RATES.peak


@pytest.mark.usefixtures("measured")
def test_rounds_that_are_done_are_not_counted(tmp_path: Path) -> None:
    one, two = cell_folders_in(tmp_path, cells_of("tiny-imagenet"))[:2]
    before = planned_costs([one, two], 1, lambda text: None).by_cell
    pretend(one, [1.0], finished=False)
    again = cell_folders_in(tmp_path, cells_of("tiny-imagenet"))[:2]
    after = planned_costs(again, 1, lambda text: None).by_cell
    assert after[two.name] == before[two.name]
    assert after[one.name] < before[one.name]
