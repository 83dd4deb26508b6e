"""What the cells that are left will cost, from short rounds of each kind of cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dcfl.comparisons.cells import Cell, CellFolder
from dcfl.engines.placement import Placement, can_fork, choose_devices
from dcfl.experiment import Experiment
from dcfl.runs.estimate import Rates, measure, peak_bytes, total_seconds
from dcfl.runs.prepare import Prepared, prepare
from dcfl.system.memory import anonymous_bytes


@dataclass(frozen=True)
class PlannedCosts:
    """What cells cost that are trained `processes` at a time."""

    by_cell: dict[str, float]  # seconds
    seconds: float  # of all
    peak_bytes: int  # of all processes; memory that they share counts once
    processes: int


def planned_costs(
    cells: Sequence[CellFolder[Cell]], processes: int, show: Callable[[str], None]
) -> PlannedCosts:
    """Of each kind, measured once with as many clients at once as there are processes. `show` is
    told what is measured."""
    kinds: dict[tuple[object, ...], list[CellFolder[Cell]]] = {}
    for cell in cells:
        kinds.setdefault(kind_of(cell.experiment), []).append(cell)
        _ = cell.rounds_left  # before any time is spent, because reading finds the damaged ones
    by_cell: dict[str, float] = {}
    peak = 0
    for number, alike in enumerate(kinds.values(), 1):
        experiment = alike[0].experiment
        named = f"{experiment.method.name}, {experiment.model.name}, {experiment.data.dataset}"
        show(f"measuring {number}/{len(kinds)}: {named}")
        prepared, rates = _measured(experiment, processes)
        known: dict[tuple[object, ...], float] = {}
        for cell in alike:
            drawn = replace(cell.cell.experiment.federation, seed=0)  # whom it draws costs the same
            key = (drawn, cell.cell.experiment.training, cell.rounds_left)
            if key not in known:
                known[key] = _seconds_left(cell, prepared, rates)
            by_cell[cell.name] = known[key]
        # The trial's processes are copies of one that has torch loaded; a cell's load their own.
        own = (processes - 1) * anonymous_bytes()
        peak = max(peak, peak_bytes(prepared, rates) + own)
    return PlannedCosts(by_cell, sum(by_cell.values()) / processes, peak, processes)


def _seconds_left(cell: CellFolder[Cell], prepared: Prepared, rates: Rates) -> float:
    """What the rounds that are left of it take, beside as many other cells."""
    own = cell.cell.experiment
    alike = replace(prepared.experiment, federation=own.federation, training=own.training)
    done = own.federation.rounds - cell.rounds_left
    return total_seconds(replace(prepared, experiment=alike), rates, done)


def kind_of(experiment: Experiment) -> tuple[object, ...]:
    """Cells with equal kinds differ at most in numbers that an estimate knows how to count."""
    data, method = experiment.data, experiment.method
    return (
        method.name,
        method.second_view,
        replace(data, alpha=1.0, seed=0),
        experiment.model,
        experiment.training.batch_size,
        experiment.training.all_epochs,
        experiment.engine,
    )


def _measured(experiment: Experiment, processes: int) -> tuple[Prepared, Rates]:
    if processes == 1 or not can_fork():
        prepared = prepare(experiment)
        return prepared, measure(prepared)
    prepared = prepare(replace(experiment, engine=replace(experiment.engine, workers=1)))
    devices = choose_devices(experiment.engine.device)
    together = [devices[number % len(devices)] for number in range(processes)]
    return prepared, measure(prepared, Placement(together, "a cell each"))
