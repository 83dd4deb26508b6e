"""What the scripts of this folder share: results as files, and runs side by side."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.bench.measure import machine

Cell = TypeVar("Cell")
Found = TypeVar("Found")


def keep(path: Path | str, **found: Any) -> None:
    """Write what was found, with the machine that it was found on."""
    text = json.dumps({"machine": machine(), **found}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def kept_runs(path: Path) -> list[dict[str, Any]]:
    """The runs that a file of `keep` has already."""
    return json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []


def side_by_side(
    measured: Callable[[Cell, str], Found], cells: Sequence[Cell], data: str, jobs: int = 2
) -> Iterator[tuple[Cell, Found]]:
    """As they end. A process for each run: torch's threads do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, max_tasks_per_child=1) as pool:
        running = {pool.submit(measured, cell, data): cell for cell in cells}
        for future in as_completed(running):
            yield running[future], future.result()
