"""MOON with a ResNet-18 and 100 clients: 4.5 GB of client memories, within a budget.

    python benchmarks/memories.py [FILE.json]

Every client is visited three times (one batch of eight images), with memories in RAM, within
256 MB, and all on disk: seconds of the rounds in which everybody has a memory, peak memory of all
processes, and what lay on disk. The final weights must be the same.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bench.jobs import Job, read_job, write_job
from benchmarks.bench.measure import table
from benchmarks.bench.ours import experiment
from benchmarks.records import keep
from dcfl.runs.run import Run
from dcfl.system.memory import memory_of

JOB = Job("memories", "resnet18", 100, 8, 100, 1, 8, rounds=3)
BUDGETS = {"in RAM": 8192, "256 MB in RAM": 256, "all on disk": 0}


def measured(budget: int, job_folder: Path, folder: Path) -> dict[str, Any]:
    job, dataset = read_job(job_folder)
    planned = experiment(job, 2, str(folder), "moon")
    engine = replace(planned.engine, memory_budget=budget)
    run = Run(replace(planned, engine=engine), dataset)
    peak, on_disk, over = 0, 0, threading.Event()

    def watch() -> None:
        nonlocal peak, on_disk
        while not over.wait(0.5):
            peak = max(peak, memory_of(os.getpid()))
            files = (folder / "memories").glob("*.safetensors")
            on_disk = max(on_disk, sum(file.stat().st_size for file in files))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        rows = list(run.rounds())
    finally:
        over.set()
        watcher.join()
    return {
        "seconds": [row.seconds for row in rows[1:]],
        "peak_gigabytes": peak / 1e9,
        "gigabytes_on_disk": on_disk / 1e9,
        "weights_sha256": run.result().summary.weights_sha256,
    }


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        write_job(JOB, Path(scratch) / "job")
        for name, budget in BUDGETS.items():
            # A process each, so that none inherits the memory of the one before.
            process = os.fork()
            out = Path(scratch) / f"{budget}.json"
            if process == 0:
                try:
                    result = measured(budget, Path(scratch) / "job", Path(scratch) / str(budget))
                    out.write_text(json.dumps(result), encoding="utf-8")
                finally:
                    os._exit(0)
            os.waitpid(process, 0)
            found[name] = json.loads(out.read_text(encoding="utf-8"))
            print(name, found[name], file=sys.stderr)
    if len({one["weights_sha256"] for one in found.values()}) > 1:
        sys.exit("the budget changed the weights")
    rows = [
        [
            name,
            ", ".join(f"{seconds:.1f}" for seconds in one["seconds"]),
            f"{one['peak_gigabytes']:.2f}",
            f"{one['gigabytes_on_disk']:.2f}",
        ]
        for name, one in found.items()
    ]
    print(table(["memories", "s / round", "peak PSS GB", "GB on disk"], rows))
    if len(sys.argv) > 1:
        keep(sys.argv[1], budgets=found)


if __name__ == "__main__":
    main()
