"""Does a million clients cost the clock more memory, and what does it cost a round?

    python -m benchmarks.clock [FILE.json] [--steps 20] [--in-flight 1000]

FedBuff with a buffer of a tenth of what is in flight, phones, day and night, and drop-outs: all of
the clock, with a reply that costs nothing in place of the training. Each population has a process
of its own; the memory is its peak beyond what it had before the first step. The number of images is
the same for all, in one number: what a federation stores of a million clients' data is data, and
is measured in growth.py. A round's cost is the CPU time of FedAvg on the digits with equal devices
over that without a clock, in pairs one after the other.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

import dcfl
from benchmarks.bench.measure import table
from benchmarks.records import keep
from dcfl.clock.events import Clock, federate_by_clock
from dcfl.clock.settings import ClockSettings
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.methods import METHODS
from dcfl.server import Server, ServerState
from dcfl.system.processes import python

POPULATIONS = (10_000, 50_000, 200_000, 1_000_000)
PARAMETERS = 10_000


class Echo:
    """Sends back what it got, a little moved."""

    def run(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[ClientUpdate]:
        moved = {name: tensor + 0.01 for name, tensor in broadcast.weights.items()}
        for client in cohort:
            yield ClientUpdate(client, moved, {}, 20, 1, {"loss": 1.0})

    def settle(self, accepted: Collection[int]) -> None: ...


def measured(population: int, in_flight: int, steps: int) -> dict[str, float]:
    settings = ClockSettings(
        "phones", "day-night", drop_out=0.05, mode="fedbuff", buffer=max(1, in_flight // 10)
    )
    server = Server(METHODS["fedavg"](), population, frozenset({"w"}), LocalTraining(), upload={})
    clock = Clock(
        server,
        settings,
        in_flight / population,
        0,
        np.broadcast_to(np.int64(20), population),
        devices=settings.device_mix(),
        availability=settings.availabilities(),
    )
    start = ServerState(0, {"w": torch.zeros(PARAMETERS)}, {}, {})
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    visits = models = 0
    for round in federate_by_clock(clock, Echo(), start, steps):
        visits += len(round.clients)
        models = max(models, len(round.state.clock.sent) if round.state.clock else 0)
    seconds = time.process_time() - began
    return {
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3,
        "microseconds_per_visit": 1e6 * seconds / visits,
        "visits": visits,
        "models_in_flight": models,
    }


def overhead(pairs: int = 9) -> dict[str, float]:
    """The median of the ratios, the lowest and the highest."""
    ratios = []
    for _ in range(pairs):
        seconds = []
        for clock in ({}, {"devices": "uniform"}):
            with tempfile.TemporaryDirectory() as folder:
                began = time.process_time()
                dcfl.run(
                    method="fedavg",
                    clock=clock,
                    federation={"rounds": 40},
                    engine={"workers": 1},
                    output={"report": False},
                    out=Path(folder) / "run",
                    progress=False,
                )
                seconds.append(time.process_time() - began)
        ratios.append(seconds[1] / seconds[0])
    return {"ratio": median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--population", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.population:
        print(json.dumps(measured(chosen.population, chosen.in_flight, chosen.steps)))
        return
    found = {}
    for population in POPULATIONS:
        command = python("-m", "benchmarks.clock", "--population", str(population))
        command += ["--steps", str(chosen.steps), "--in-flight", str(chosen.in_flight)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found[f"{population:,}"] = json.loads(done.stdout)
        print(f"{population:,}: {done.stdout.strip()}", file=sys.stderr)
    columns = ["megabytes", "microseconds_per_visit", "visits", "models_in_flight"]
    rows = [[name, *(f"{one[column]:.0f}" for column in columns)] for name, one in found.items()]
    print(table(["clients", "MB", "us / visit", "visits", "models"], rows))
    cost = overhead()
    print(f"a round: {cost['ratio']:.3f} ({cost['lowest']:.3f} to {cost['highest']:.3f})")
    if chosen.file:
        keep(chosen.file, clock=found, in_flight=chosen.in_flight, overhead=cost)


if __name__ == "__main__":
    main()
