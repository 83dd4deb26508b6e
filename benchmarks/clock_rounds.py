"""How long do 80 rounds on the digits take by the clock, method by method?

    python -m benchmarks.clock_rounds [FILE.json]

Five seeds, 5 of 20 clients a round. Nobody is trained: virtual times depend on devices, sizes and
the method's cost, and not on what is learned. So this says what a round costs, and not what it is
worth.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import dcfl
from benchmarks.bench.measure import table
from benchmarks.records import keep
from dcfl.clock.events import Clock, federate_by_clock
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.runs.prepare import prepare
from dcfl.server import ServerState
from dcfl.tensors import snapshot

SEEDS = range(5)
METHODS = ("fedavg", "moon", "fedsol", "scaffold", "dcfl-pw")
WAYS: dict[str, dict[str, Any]] = {
    "rounds": {},
    "deadline 5 s": {"deadline": 5.0},
    "130 % asked": {"over_selection": 1.3},
    "FedBuff of 5": {"mode": "fedbuff", "buffer": 5},
}


class Untrained:
    """Sends back the weights, with an upload of the right size."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[ClientUpdate]:
        server = self._clock.server
        for client in cohort:
            images = int(self._clock.sizes[client])
            steps = server.training.steps_on(images)
            example = server.upload or {}  # shapes alone, of some methods
            upload = {name: torch.zeros(t.shape, dtype=t.dtype) for name, t in example.items()}
            yield ClientUpdate(client, broadcast.weights, upload, images, steps, {"loss": 1.0})

    def settle(self, accepted: Collection[int]) -> None: ...


def measured(devices: str, method: str, seed: int, way: dict[str, Any]) -> dict[str, float]:
    """Per step of the server's model."""
    experiment = dcfl.load_experiment(
        method=method, clock={"devices": devices, **way}, **{"federation.seed": seed}
    )
    prepared = prepare(experiment)
    clock = prepared.clock()
    if clock is None:
        raise RuntimeError("there is no clock")
    start = ServerState(0, snapshot(prepared.model), {}, {})
    rounds = [*federate_by_clock(clock, Untrained(clock), start, experiment.federation.rounds)]
    reports = [report for round in rounds for report in round.clients]
    end = rounds[-1].state.clock
    return {
        # A prototype of no image is rejected, which takes as long.
        "seconds": (end.now if end else 0.0) / len(rounds),
        "megabytes": sum(one.bytes_up + one.bytes_down for one in reports) / 1e6 / len(rounds),
        "replies": sum(one.outcome in ("ok", "rejected") for one in reports) / len(rounds),
        "age": fmean(one.staleness for one in reports),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    chosen = parser.parse_args()
    cells = [(method, "rounds") for method in METHODS]
    cells += [("fedavg", way) for way in WAYS if way != "rounds"]
    found, rows = {}, []
    for method, way in cells:
        row = [method, way]
        for devices in ("phones", "hospitals"):
            each = [measured(devices, method, seed, WAYS[way]) for seed in SEEDS]
            found[f"{method}, {way}, {devices}"] = each
            seconds = [one["seconds"] for one in each]
            row.append(f"{fmean(seconds):.2f} ± {stdev(seconds):.2f}")
        phones = found[f"{method}, {way}, phones"]
        shown = {"megabytes": 1, "replies": 2, "age": 1}
        row += [f"{fmean(one[name] for one in phones):.{n}f}" for name, n in shown.items()]
        rows.append(row)
        print(*rows[-1], sep="  ", flush=True)
    columns = ["method", "way", "phones, s", "hospitals, s", "MB", "replies", "steps old"]
    print(table(columns, rows))
    if chosen.file:
        keep(chosen.file, clock_rounds=found)


if __name__ == "__main__":
    main()
