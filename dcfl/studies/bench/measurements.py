"""Measurements as JSON and as tables in Markdown: medians, and from the lowest to the highest."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from statistics import median
from typing import Any

from dcfl.studies.bench.jobs import JOBS
from dcfl.studies.bench.measure import Measurement

Measured = Mapping[str, Sequence[Measurement]]  # by contender, repeat by repeat


def as_json(jobs: Mapping[str, Measured]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "jobs": {
            job: {name: [asdict(one) for one in each] for name, each in measured.items()}
            for job, measured in jobs.items()
        },
    }


def from_json(stored: Mapping[str, Any]) -> dict[str, dict[str, list[Measurement]]]:
    return {
        job: {name: [Measurement(**one) for one in each] for name, each in measured.items()}
        for job, measured in stored["jobs"].items()
    }


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("dcfl", "torch", "numpy")},
    }


def jobs_table(jobs: Mapping[str, Measured]) -> str:
    """Ratios are taken within a repeat."""
    lines = []
    for job, measured in jobs.items():
        repeats = len(measured["floor"])
        lines += [f"{job}: {JOBS[job].about} ({repeats} repeats)", ""]
        pfl = measured.get("pfl, 2 processes")
        header = ["", "s / round", "/ floor", "/ pfl", "start-up s", "CPU s", "peak PSS GB"]
        rows = [
            [
                name,
                spread(one.round for one in each),
                spread(_ratios(each, measured[_floor_of(name)])),
                spread(_ratios(each, pfl)) if pfl and "1 core" not in name else "",
                spread(one.start_up for one in each),
                spread(one.cpu for one in each),
                spread(one.pss for one in each),
            ]
            for name, each in measured.items()
        ]
        lines += [table(header, rows), ""]
    return "\n".join(lines).strip()


def methods_table(models: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Seconds per round of each method relative to FedAvg's in the same repeat."""
    header = ["method", *(f"{model}: / FedAvg" for model in models)]
    names = next(iter(models.values()))
    rows = [
        [
            name,
            *(
                spread(one / base for one, base in zip(found[name], found["fedavg"], strict=True))
                for found in models.values()
            ),
        ]
        for name in names
    ]
    return table(header, rows)


def spread(values: Iterable[float]) -> str:
    known = sorted(values)
    return f"{median(known):.2f} ({known[0]:.2f} to {known[-1]:.2f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(header), rule, *map(line, rows)])


def _floor_of(contender: str) -> str:
    return "floor, 1 core" if contender.endswith("1 core") else "floor"


def _ratios(each: Sequence[Measurement], floor: Sequence[Measurement]) -> list[float]:
    return [one.round / below.round for one, below in zip(each, floor, strict=True)]
