"""Measurements as JSON and as Markdown tables: medians, with the lowest and the highest."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from statistics import median
from typing import Any

from benchmarks.bench.jobs import JOBS
from benchmarks.bench.measure import Measurement

Measured = Mapping[str, Sequence[Measurement]]  # by contender, repeat by repeat


def as_json(jobs: Mapping[str, Measured]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "jobs": {
            job: {name: list(map(asdict, repeats)) for name, repeats in measured.items()}
            for job, measured in jobs.items()
        },
    }


def methods_json(models: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    return {"machine": machine(), "models": models}


def from_json(stored: Mapping[str, Any]) -> dict[str, dict[str, list[Measurement]]]:
    return {
        job: {
            name: [Measurement(**values) for values in repeats]
            for name, repeats in measured.items()
        }
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
    header = ["", "s / round", "/ floor", "/ pfl", "start-up s", "CPU s", "peak PSS GB"]
    lines = []
    for job, measured in jobs.items():
        lines += [f"{job}: {JOBS[job].about} ({len(measured['floor'])} repeats)", ""]
        lines += [table(header, [_row(name, measured) for name in measured]), ""]
    return "\n".join(lines).strip()


def _row(contender: str, measured: Measured) -> list[str]:
    repeats, pfl = measured[contender], measured.get("pfl, 2 processes")
    return [
        contender,
        spread(repeat.round for repeat in repeats),
        spread(_ratios(repeats, measured["floor"])),
        spread(_ratios(repeats, pfl)) if pfl else "",
        spread(repeat.start_up for repeat in repeats),
        spread(repeat.cpu for repeat in repeats),
        spread(repeat.pss for repeat in repeats),
    ]


def methods_table(models: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Seconds per round of each method relative to FedAvg's in the same repeat."""
    header = ["method", *(f"{model}: / FedAvg" for model in models)]
    names = next(iter(models.values()))
    rows = [
        [
            name,
            *(
                spread(
                    seconds / base
                    for seconds, base in zip(by_method[name], by_method["fedavg"], strict=True)
                )
                for by_method in models.values()
            ),
        ]
        for name in names
    ]
    return table(header, rows)


def spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return f"{median(ordered):.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(header), rule, *map(line, rows)])


def _ratios(repeats: Sequence[Measurement], base: Sequence[Measurement]) -> list[float]:
    return [ours.round / theirs.round for ours, theirs in zip(repeats, base, strict=True)]
