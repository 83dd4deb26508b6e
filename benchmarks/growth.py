"""Does the cost of a client stay what it is when there are many?

    python benchmarks/growth.py [METHOD [FILE.json]]

10,000 clients of 20 images are trained for real (LeNet, one epoch of two batches) with 10, 100 and
1,000 of them a round, and once more with 100 clients in all; then the index and the sampler alone
with a million clients.

FedAvg sends nothing but weights. With another method, 10 and then all of 100 clients train a
ResNet-18, 45 MB, so that an upload of that size shows in the peak. What its clients remember is on
disk: up to 9 GB with SCAFFOLD.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.bench.jobs import Job, write_job
from benchmarks.bench.measure import Contender, measure, table
from benchmarks.records import keep
from dcfl.data import Partition
from dcfl.federation import sample_cohort
from dcfl.methods import METHODS
from dcfl.system.processes import python

MANY = Job("many clients", "lenet", 10_000, 20, 10, 1, 10, rounds=12)
HEAVY = Job("a large model", "resnet18", 100, 8, 10, 1, 8, rounds=2)
REPEATS = 2


def jobs_for(method: str) -> dict[str, Job]:
    job, sizes = HEAVY, [(100, 10), (100, 100)]
    if method == "fedavg":
        job, sizes = MANY, [(100, 10), (10_000, 10), (10_000, 100), (10_000, 1_000)]
    return {
        f"{cohort:,} of {clients:,}": replace(job, clients=clients, cohort=cohort)
        for clients, cohort in sizes
    }


def trained(method: str) -> dict[str, list[dict[str, float]]]:
    """Everybody in turn, `REPEATS` times."""
    jobs = jobs_for(method)
    command = python("-m", "benchmarks.bench.ours", "{folder}", "2", method)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    with tempfile.TemporaryDirectory() as scratch:
        for name, job in jobs.items():
            write_job(job, Path(scratch) / name)
        for _ in range(REPEATS):
            for name, job in jobs.items():
                one = measure(Contender(name, command, {}), Path(scratch) / name)
                per_client = 1000 * one.round / job.cohort
                found[name].append({**asdict(one), "milliseconds_per_client": per_client})
                print(f"{name}: {per_client:.2f} ms a client, {one.pss:.2f} GB", file=sys.stderr)
    return found


def indexed() -> dict[str, float]:
    """A million clients of two samples each: what the index weighs and a cohort costs."""
    clients = 1_000_000
    began = time.perf_counter()
    indices = np.random.default_rng(0).permutation(2 * clients).astype(np.int32)
    partition = Partition(np.arange(clients + 1, dtype=np.int64) * 2, indices)
    made = time.perf_counter()
    for round in range(100):
        for client in sample_cohort(clients, 1e-4, seed=0, round=round):
            partition.of(client)
    sampled = time.perf_counter()
    return {
        "index_megabytes": (partition.offsets.nbytes + partition.indices.nbytes) / 1e6,
        "seconds_to_make": made - began,
        "milliseconds_to_sample_and_look_up_100": 10 * (sampled - made),
        "peak_megabytes_of_the_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method", nargs="?", choices=METHODS, default="fedavg")
    parser.add_argument("file", nargs="?", type=Path)
    chosen = parser.parse_args()
    million = indexed()
    found = trained(chosen.method)
    rows = [
        [
            name,
            f"{median(one['milliseconds_per_client'] for one in each):.2f}",
            f"{median(one['pss'] for one in each):.2f}",
        ]
        for name, each in found.items()
    ]
    print(table(["clients a round", "ms / client", "peak PSS GB"], rows))
    print(json.dumps(million, indent=1))
    if chosen.file:
        keep(chosen.file, trained=found, a_million_clients=million)


if __name__ == "__main__":
    main()
