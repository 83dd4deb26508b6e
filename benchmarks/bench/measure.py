"""Runs the contenders as programs, in turn, and watches them from outside; and what was measured
as JSON and as Markdown tables: medians, with the lowest and the highest."""

from __future__ import annotations

import itertools
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench.jobs import JOBS
from dcfl.errors import DCFLError
from dcfl.system.memory import MemoryWatch
from dcfl.system.processes import python

PEERS = Path(__file__).parent / "peers"


class BenchmarkFailed(DCFLError, RuntimeError):
    """A contender did not finish its job."""

    exit_code = 1


@dataclass(frozen=True)
class Contender:
    name: str
    command: Sequence[str]  # the job's folder goes into {folder}
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Measurement:
    """One run of one contender on one job."""

    start_up: float  # seconds from the program's start to its first training step
    round: float  # seconds, the median over the rounds after the first
    cpu: float  # seconds of user and system time, in all
    pss: float  # GB at most, over all its processes; shared memory counts once
    steps: int


def peer_environment(name: str, folder: Path) -> Path:
    """The Python of the peer's own environment below `folder`; made if missing."""
    home = folder / name
    peer_python = home / "bin" / "python"
    marker = home / "installed"
    if marker.exists():
        return peer_python
    requirements = str(PEERS / f"{name}.txt")
    install = [str(peer_python), "-P", "-m", "pip", "install", "--quiet", "-r", requirements]
    for command in (python("-m", "venv", str(home)), install):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or "no error was printed").splitlines()[-1]
            raise BenchmarkFailed(f"the environment of {name} cannot be made: {last}")
    marker.touch()
    return peer_python


def contenders(peers: Mapping[str, Path], floor_threads: int = 2) -> list[Contender]:
    """dcfl and the floor, and the peers whose environment's Python is given."""
    package = {"PYTHONPATH": str(Path(__file__).parents[2])}
    floor = python("-m", "benchmarks.bench.floor", "{folder}")
    ours = python("-m", "benchmarks.bench.ours", "{folder}")
    competing = [
        Contender("floor", [*floor, str(floor_threads)], package),
        Contender("dcfl", [*ours, "2"], package),
        Contender("dcfl, bfloat16", [*ours, "2", "fedavg", "bfloat16"], package),
    ]
    if "pfl" in peers:
        command = [str(peers["pfl"]), str(PEERS / "pfl_job.py"), "{folder}"]
        competing.append(Contender("pfl, 2 processes", [*command, "2"], package))
    if "flower" in peers:
        command = [str(peers["flower"]), str(PEERS / "flower_job.py"), "{folder}"]
        competing.append(Contender("flower", command, package))
    return competing


def measure_all(
    competing: Sequence[Contender], folder: Path, repeats: int, show: Callable[[str], None]
) -> dict[str, list[Measurement]]:
    """Every contender once per repeat, each time starting with another: whatever disturbs the
    machine, or is left behind by one for the next, disturbs all alike."""
    measured: dict[str, list[Measurement]] = {contender.name: [] for contender in competing}
    for repeat in range(repeats):
        first = repeat % len(competing)
        for contender in (*competing[first:], *competing[:first]):
            measurement = measure(contender, folder)
            measured[contender.name].append(measurement)
            seconds = f"{measurement.round:.3f} s a round"
            show(f"{repeat + 1}/{repeats} {contender.name}: {seconds}")
    steps = {name: repeated[0].steps for name, repeated in measured.items()}
    if len(set(steps.values())) > 1:
        raise BenchmarkFailed(f"not everybody took the same number of steps: {steps}")
    return measured


def measure(contender: Contender, folder: Path) -> Measurement:
    """Run a contender on a job and watch it."""
    command = [part.format(folder=folder) for part in contender.command]
    import resource  # Unix alone has it

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.time()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **contender.environment},
    )
    with MemoryWatch(process.pid) as watch:
        output, errors = process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    events = _events(output)
    end = [event for event in events if event["event"] == "end"]
    if process.returncode or not end:
        last = (errors.strip() or "no error was printed").splitlines()[-1]
        raise BenchmarkFailed(f"{contender.name} ended with {process.returncode}: {last}")
    return Measurement(
        start_up=min(e["at"] for e in events if e["event"] == "first-step") - started,
        round=median(_round_seconds(events)),
        cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        pss=watch.peak / 1e9,
        steps=end[0]["steps"],
    )


def _events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"event"')]


def _round_seconds(events: list[dict[str, Any]]) -> list[float]:
    """As the contender reports them, or from the end of one round to the end of the next."""
    rounds = [event for event in events if event["event"] == "round"]
    return [
        event.get("seconds", event["at"] - before["at"])
        for before, event in itertools.pairwise(rounds)
    ]


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
