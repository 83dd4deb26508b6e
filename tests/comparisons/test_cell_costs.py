"""What the cells that are left would cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcfl.comparisons import cell_costs
from dcfl.comparisons.cell_costs import planned_costs
from dcfl.engines.placement import Placement
from dcfl.runs.estimate import Rates
from dcfl.runs.prepare import Prepared
from tests.paper.hand_made import cell_folders_in, cells_of, pretend
from tests.runs.rates import RATES

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
