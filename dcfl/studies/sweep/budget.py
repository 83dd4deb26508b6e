"""How much time a sweep may take: no trial begins that would not end in time."""

from __future__ import annotations

import re
import time
from statistics import fmean

from dcfl.errors import ConfigError
from dcfl.studies.cells.cell_costs import CellMeter
from dcfl.studies.cells.cell_folders import Cell, CellFolder

UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def seconds_in(text: str) -> float:
    """Of `90s`, `30m`, `2h` or `1.5d`."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?(s|m|min|h|d)", text.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"--budget {text}: a time such as 90s, 30m, 2h or 1d")
    return float(found[1]) * UNITS[found[2]]


class Budget:
    """Without a limit, nothing is measured."""

    def __init__(self, limit: float | None, processes: int, seeds: int) -> None:
        self.limit = limit
        self._began = time.monotonic()
        self._meter = CellMeter(processes)
        self._turns = -(-seeds // processes)  # in which the chosen point is trained
        self._begun: dict[str, tuple[float, float]] = {}  # when, and the estimate
        self._ratios: list[float] = []  # of what cells took to what was estimated

    def allows(self, cell: CellFolder[Cell]) -> bool:
        """Whether the cell, and then the chosen point, would end in time."""
        if self.limit is None:
            return True
        estimate = self._meter.seconds(cell)
        self._begun[cell.name] = (time.monotonic(), estimate)
        ratio = fmean(self._ratios) if self._ratios else 1.0
        after = time.monotonic() - self._began + ratio * estimate * (1 + self._turns)
        return after <= self.limit

    def finished(self, cell: CellFolder[Cell]) -> None:
        """Learn from what the cell took: other programs may keep the machine busy."""
        if cell.name in self._begun:
            began, estimate = self._begun[cell.name]
            self._ratios.append((time.monotonic() - began) / max(estimate, 1e-6))
