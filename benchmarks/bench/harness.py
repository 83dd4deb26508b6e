"""The two benchmarks of `benchmarks.bench`: check the request, measure, save."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench.jobs import JOBS, tiny, write_job
from benchmarks.bench.load import busy_cores
from benchmarks.bench.measure import Measurement, contenders, measure_all, peer_environment
from benchmarks.bench.measurements import as_json, methods_json
from benchmarks.bench.method_costs import IMAGES, Seconds, method_seconds
from dcfl.config import method_named
from dcfl.errors import ConfigError
from dcfl.methods import METHODS
from dcfl.system.storage import strict_json, write_whole
from dcfl.system.wording import print_warning, say

BUSY = 0.25  # of the cores: times are not to be trusted


def time_jobs(
    jobs: str, repeats: int, peers: Path | None, out: Path | None, small: bool
) -> dict[str, dict[str, list[Measurement]]]:
    """By job and contender. `jobs`: comma-separated names; `peers`: holds the peers'
    environments."""
    chosen = _names(jobs, JOBS, "--jobs: no job")
    _warn_if_busy()
    pythons = {}
    if peers is not None:
        for name in ("pfl", "flower"):
            _say("environment of")(name)
            pythons[name] = peer_environment(name, peers.absolute())
    measured: dict[str, dict[str, list[Measurement]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # On a busy machine, two threads of the floor wait for each other for minutes.
        competing = contenders(pythons, floor_threads=1 if small else 2)
        for name in chosen:
            folder = Path(scratch) / name
            write_job(tiny(JOBS[name]) if small else JOBS[name], folder)
            measured[name] = measure_all(competing, folder, repeats, _say(name))
            _save(out, as_json(measured))
    return measured


def time_methods(models: str, methods: str, repeats: int, out: Path | None) -> dict[str, Seconds]:
    """By model and method. Without `methods`, all of them."""
    chosen = _names(models, IMAGES, "--models: no model")
    others = [method_named(name.strip()).name for name in methods.split(",") if name.strip()]
    compared = list(dict.fromkeys(["fedavg", *(others or METHODS)]))
    measured: dict[str, Seconds] = {}
    _warn_if_busy()
    for name in chosen:
        measured[name] = method_seconds(name, compared, repeats, _say(name))
        _save(out, methods_json(measured))
    return measured


def _warn_if_busy() -> None:
    busy, cores = busy_cores(), os.cpu_count() or 1
    if busy > BUSY * cores:
        print_warning(
            f"the machine is busy: {busy:.1f} of {cores} cores are at work on something else, so "
            f"times will be too long, and ratios wrong"
        )


def _names(text: str, known: Collection[str], complaint: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise ConfigError(f"{complaint} {name!r}; known: {', '.join(known)}")
    return chosen


def _say(about: str) -> Callable[[str], None]:
    return lambda text: say(f"{about} {text}")


def _save(out: Path | None, measured: Mapping[str, Any]) -> None:
    """After each part, so that an interrupted benchmark keeps what it has."""
    if out is not None:
        write_whole(out, strict_json(measured, indent=1) + "\n")
