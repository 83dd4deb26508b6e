"""Does a long run keep its memory, files and threads?

    python benchmarks/soak.py [ROUNDS] [FILE.json]

MOON on the digits, whose clients keep a model each, with a pool of two workers: looked at every 20
rounds. Fails if memory grows by more than 1 MB per 100 rounds after the first fifth of the run, or
if anything else grows at all.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.records import keep
from dcfl.config import experiment_from
from dcfl.runs.run import Run
from dcfl.system.memory import memory_of


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    tables = {
        "method": {"name": "moon"},
        "federation": {"rounds": rounds},
        "training": {"epochs": 1},
        "engine": {"workers": 2},
    }
    seen: list[dict[str, float]] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(experiment_from(None, {**tables, "output": {"dir": folder, "report": False}}))
        for row in run.rounds():
            if row.round % 20 == 0:
                seen.append(look(row.round, Path(folder)))
                print(seen[-1], file=sys.stderr)
    seconds = time.perf_counter() - began
    settled = [one for one in seen if one["round"] >= rounds / 5]
    slope = np.polyfit(
        [one["round"] for one in settled], [one["pss_megabytes"] for one in settled], 1
    )[0]
    steady = all(len({one[key] for one in settled}) == 1 for key in ("files", "threads", "entries"))
    verdict = {"megabytes_per_100_rounds": 100 * slope, "steady": steady, "seconds": seconds}
    print(json.dumps(verdict))
    if len(sys.argv) > 2:
        keep(sys.argv[2], rounds=rounds, **verdict, seen=seen)
    sys.exit(0 if steady and 100 * slope < 1 else 1)


def look(round: int, folder: Path) -> dict[str, float]:
    return {
        "round": round,
        "pss_megabytes": memory_of(os.getpid()) / 1e6,
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "entries": len(list(folder.rglob("*"))),
    }


if __name__ == "__main__":
    main()
