"""What does each rule of aggregation withstand, and what does it cost when nobody attacks?

    python benchmarks/robustness.py [FILE.json [ROW ...]]

The built-in digits, 20 clients of which 4 attack, 10 clients a round, 11 with the Krum rules (which
need as many against 4); every rule against every attack with FedAvg, then both merges of prototypes
with DCFL-PW. Final accuracy on the test images, over three seeds (of the split, the attackers and
the training). With rows named, only those are run, and the others stay as the file has them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import dcfl
from benchmarks.bench.measure import table
from benchmarks.records import keep

SEEDS = (0, 1, 2)
RULES = (
    *("uniform", "norm-clipping", "median", "trimmed-mean"),
    *("krum", "multi-krum"),
)
ATTACKS: dict[str, dict[str, Any]] = {
    "no attack": {"kind": "none"},
    "sign flip x10": {"kind": "sign-flip", "strength": 10.0},
    "noise x100": {"kind": "noise", "strength": 100.0},
    "scaling x100": {"kind": "scaling", "strength": 100.0},
    "label flip": {"kind": "label-flip"},
}
FLIPS: dict[str, dict[str, Any]] = {
    "no attack": {"kind": "none"},
    "prototype flip x10": {"kind": "prototype-flip", "strength": 10.0},
}
MERGES = {
    f"{merge}, mu = {mu:g}": {"name": "dcfl-pw", "mu": mu, "prototype_merge": merge}
    for mu in (0.1, 10.0)
    for merge in ("mean", "median")
}
PARTICIPATION = {"krum": 0.55, "multi-krum": 0.55}  # of the other rows: 0.5
Found = dict[str, dict[str, list[float]]]  # rule or merge, attack, one figure for each seed


def tasks() -> list[tuple[str, str, int, dict[str, Any]]]:
    """Rule or merge, attack, seed and the settings, so that the seeds of a cell are in order."""
    rules = [
        (rule, attack, seed, {"method": "fedavg", "server": {"aggregation": rule}, "attack": how})
        for seed in SEEDS
        for attack, how in ATTACKS.items()
        for rule in RULES
    ]
    merges = [
        (merge, attack, seed, {"method": method, "attack": how})
        for seed in SEEDS
        for attack, how in FLIPS.items()
        for merge, method in MERGES.items()
    ]
    return [*rules, *merges]


def accuracy(task: tuple[str, str, int, dict[str, Any]]) -> float:
    row, _, seed, tables = task
    with tempfile.TemporaryDirectory() as folder:
        result = dcfl.run(
            None,
            data={"alpha": 0.3, "clients": 20, "seed": seed},
            training={"epochs": 1, "batch_size": 16, "lr": 0.05},
            federation={"rounds": 40, "participation": PARTICIPATION.get(row, 0.5), "seed": seed},
            engine={"workers": 1, "device": "cpu"},
            output={"dir": f"{folder}/run", "report": False},
            **tables,
        )
        return float(result.rounds[-1]["accuracy"])


def shown(found: Found, first: str) -> str:
    attacks = list(next(iter(found.values())))
    rows = [[name, *(_spread(row[attack]) for attack in attacks)] for name, row in found.items()]
    return table([first, *attacks], rows)


def _spread(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values) if len(values) > 1 else 0:.1f}"


def main() -> None:
    os.nice(19)
    began = time.perf_counter()
    path, rows = (Path(sys.argv[1]) if len(sys.argv) > 1 else None), sys.argv[2:]
    stored = json.loads(path.read_text(encoding="utf-8")) if path and rows else {}
    found: Found = {
        row: cells
        for each in ("rules", "merges")
        for row, cells in stored.get(each, {}).items()
        if row not in rows
    }
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        jobs = [task for task in tasks() if not rows or task[0] in rows]
        for (row, attack, seed, _), figure in zip(jobs, processes.map(accuracy, jobs), strict=True):
            found.setdefault(row, {}).setdefault(attack, []).append(figure)
            print(f"seed {seed}, {attack}, {row}: {figure:.1f}", file=sys.stderr, flush=True)
    rules = {rule: found[rule] for rule in RULES if rule in found}
    merges = {merge: found[merge] for merge in MERGES if merge in found}
    print(shown(rules, "aggregation"), shown(merges, "merge"), sep="\n\n")
    if path:
        seconds = stored.get("seconds", 0.0) + time.perf_counter() - began
        keep(path, seconds=seconds, rules=rules, merges=merges)


if __name__ == "__main__":
    main()
