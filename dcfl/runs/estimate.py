"""What a run will cost on this machine: time, memory, disk and traffic, from a short trial."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dcfl.data.client_data import bounds
from dcfl.engines.regions import slot_count
from dcfl.evaluation import PART
from dcfl.federation import cohort_size, sample_cohort
from dcfl.messages import num_bytes
from dcfl.runs.checkpoints import KEPT
from dcfl.runs.connect import connect
from dcfl.runs.costs import Rates, makespan
from dcfl.runs.folder import folder_for, require_unused, require_utf8
from dcfl.runs.prepare import Prepared
from dcfl.runs.trial import measure
from dcfl.server.aggregation import ROBUST
from dcfl.system.json_types import Json
from dcfl.system.memory import available_bytes, memory_of

FOLLOWED = 500  # rounds, one by one; the later ones are like the last half of these


@dataclass(frozen=True)
class Estimate:
    """Of a whole run, as its summary will say: without the start of the program and the report."""

    round_seconds: float  # of a round in the second half
    seconds: float
    peak_bytes: int  # of all processes; memory that they share counts once
    available_bytes: int  # to a run that begins now
    disk_bytes: int  # at most, while it runs
    bytes_up: int  # all clients and rounds
    bytes_down: int
    workers: int
    visits: int  # of clients, that were timed
    measured_seconds: float  # that measuring took

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.available_bytes

    def to_json(self) -> Json:
        return {**asdict(self), "fits": self.fits}


def estimate(prepared: Prepared) -> Estimate:
    """Measure what the run needs of this machine; nothing of it is trained or written."""
    experiment = prepared.experiment
    folder = folder_for(experiment, prepared.data.dataset.name)
    require_utf8(folder)
    require_unused(folder)
    if experiment.engine.name == "flower":  # refuses, as the run would
        connect(prepared.session("estimate", folder, {}, []))
    # This process makes room for the run.
    available = available_bytes() + memory_of(os.getpid())
    rates = measure(prepared)
    rounds, sizes = experiment.federation.rounds, rates.sizes
    seconds = list(_seconds(prepared, rates))
    replies = rounds * _cohort(prepared)
    late = seconds[len(seconds) // 2 :]
    return Estimate(
        round_seconds=sum(late) / len(late),
        seconds=total_seconds(prepared, rates),
        peak_bytes=peak_bytes(prepared, rates),
        available_bytes=available,
        disk_bytes=_disk(prepared, rates),
        bytes_up=replies * sizes.up,
        bytes_down=replies * sizes.down,
        workers=len(prepared.placement.devices),
        visits=rates.visits,
        measured_seconds=rates.seconds,
    )


def total_seconds(prepared: Prepared, rates: Rates, begin: int = 0) -> float:
    """Of the rounds after `begin`, with the clients that these rounds will draw."""
    rounds = prepared.experiment.federation.rounds
    followed = list(_seconds(prepared, rates, begin))
    if not followed:
        return 0.0
    late = followed[len(followed) // 2 :]
    rest = (rounds - begin - len(followed)) * sum(late) / len(late)
    return rates.warm_up + sum(followed) + rest + _personal_seconds(prepared, rates)


def _scoring(prepared: Prepared, rates: Rates) -> list[float]:
    """Seconds of each part of an evaluation."""
    parts = bounds(len(prepared.data.dataset.test), PART)
    return [(end - start) * rates.scored for start, end in parts]


def _personal_seconds(prepared: Prepared, rates: Rates) -> float:
    """At the end, every client's own model is scored, if a part of it is personal."""
    if not prepared.runner.personal:
        return 0.0
    scoring, workers = _scoring(prepared, rates), len(prepared.placement.devices)
    return _visited(prepared) * makespan((), workers, scoring, rates.crowd)


def _seconds(prepared: Prepared, rates: Rates, begin: int = 0) -> Iterator[float]:
    """Of each round. An evaluation runs while the next round trains, so it counts there; the last
    one counts with its own round."""
    federation, training = prepared.experiment.federation, prepared.experiment.training
    population, workers = prepared.experiment.data.population, len(prepared.placement.devices)
    sizes = prepared.data.partition.sizes
    scoring = _scoring(prepared, rates)
    drawn = [
        sample_cohort(population, federation.share, federation.seed, number)
        for number in range(1, min(federation.rounds, begin + FOLLOWED) + 1)
    ]
    visited = {client for cohort in drawn[:begin] for client in cohort}
    pending: list[float] = []
    for number, cohort in enumerate(drawn[begin:], begin + 1):
        visits = [
            (rates.later if client in visited else rates.first).seconds(
                int(sizes[client]), training.batch_size, training.all_epochs
            )
            + rates.reply
            for client in cohort
        ]
        visited.update(cohort)
        seconds = makespan(visits, workers, pending, rates.crowd)
        pending = scoring if federation.evaluates(number) else []
        yield seconds + (
            makespan((), workers, pending, rates.crowd) if number == len(drawn) else 0.0
        )


def _cohort(prepared: Prepared) -> int:
    experiment = prepared.experiment
    return cohort_size(experiment.data.population, experiment.federation.share)


def _visited(prepared: Prepared) -> int:
    """How many different clients will have trained; all of them, to be safe, in a long run."""
    federation, population = prepared.experiment.federation, prepared.experiment.data.population
    return min(population, federation.rounds * _cohort(prepared))


def peak_bytes(prepared: Prepared, rates: Rates) -> int:
    """That of the trial, and what more clients than the trial's leave in memory."""
    experiment, sizes = prepared.experiment, rates.sizes
    weights, cohort = num_bytes(prepared.model.state_dict()), _cohort(prepared)
    budget = experiment.engine.memory_budget * 10**6
    kept = [min(budget, count * sizes.memory) for count in (_visited(prepared), sizes.remembering)]
    more = max(0, cohort - sizes.cohort)
    copies = sizes.upload + (weights if experiment.server.aggregation in ROBUST else 0)
    workers = len(prepared.placement.devices)
    slots = slot_count(weights, workers) if workers > 1 else 0
    waiting = min(slots, cohort) - min(slots, sizes.cohort)
    reply = weights + sizes.upload + 2 * sizes.memory  # the memory goes both ways
    return sizes.peak + max(0, kept[0] - kept[1]) + more * copies + max(0, waiting) * reply


def _disk(prepared: Prepared, rates: Rates) -> int:
    """The models, the checkpoints with a partial one, the clients' memories and personal parts."""
    experiment, sizes = prepared.experiment, rates.sizes
    weights = num_bytes(prepared.model.state_dict())
    best = weights if experiment.output.keep_best else 0
    models = weights + best + _visited(prepared) * num_bytes(prepared.runner.personal)
    memories = _visited(prepared) * sizes.memory
    if experiment.output.checkpoint == 0:
        return models + max(0, memories - experiment.engine.memory_budget * 10**6)
    return models + (KEPT + 1) * (sizes.state + best + memories)
