"""What a run will cost on this machine: time, memory, disk and traffic, from a few short rounds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from heapq import heapreplace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from dcfl import tensors as named
from dcfl.data import FederatedData, Partition
from dcfl.data.client_data import bounds
from dcfl.data.splits.partition import Integers
from dcfl.engines.engine import Session
from dcfl.engines.placement import Placement
from dcfl.engines.regions import slot_count
from dcfl.engines.runner import reproducible
from dcfl.errors import TooFewClients
from dcfl.evaluation import PART
from dcfl.experiment import Experiment, FaultSettings
from dcfl.federation import Sampling, sample_cohort
from dcfl.messages import num_bytes
from dcfl.runs.checkpoints import KEPT
from dcfl.runs.connect import on_this_machine, require_startable
from dcfl.runs.folder import folder_for, require_unused, require_utf8
from dcfl.runs.prepare import Prepared
from dcfl.server import ClientReport, ServerState
from dcfl.server.aggregation import ROBUST
from dcfl.system.json_types import Json
from dcfl.system.memory import MemoryWatch, available_bytes, memory_of

LEARNING_RATE = 1e-6
SAMPLING = 0.1  # seconds between two looks at the memory
# Rounds are repeated until they have taken so many seconds, because no single one is typical of a
# machine that does other things too.
LONG_ENOUGH, REPEATS = 1.5, 10
# Seconds of a visit, which may be of some of a client's batches, and of a round, which may be of
# some of its clients.
LONGEST_VISIT, LONGEST_ROUND = 2.0, 2.0
FEW_IMAGES = 100  # scored at first
FOLLOWED = 500  # rounds, one by one; the later ones are like these


@dataclass(frozen=True)
class Rates:
    """What this machine takes for the parts of one experiment, with all workers busy."""

    visit: float  # seconds per image and epoch
    overhead: float  # what a round takes, compared with its visits packed into the workers
    scored: float  # seconds per test image
    warm_up: float  # seconds that the very first steps take longer
    peak: int  # bytes of all processes, while `cohort` clients a round trained
    cohort: int
    memory: int  # bytes that a client keeps
    upload: int  # bytes that it sends in addition to the weights
    up: int  # all bytes that it sends
    down: int
    state: int  # bytes of the server's state
    visits: int  # of clients, that were timed
    seconds: float = 0.0  # that measuring took


def makespan(tasks: Iterable[float], workers: int, fillers: Iterable[float] = ()) -> float:
    """Seconds until all is done, the longest task first, then the fillers, each by whoever is free:
    as the pool gives them out."""
    busy_until = [0.0] * workers
    for seconds in (*sorted(tasks, reverse=True), *fillers):
        heapreplace(busy_until, busy_until[0] + seconds)
    return max(busy_until)


def measure(prepared: Prepared, placement: Placement | None = None) -> Rates:
    """Train short rounds in as many processes as the run would use: of clients with a batch each,
    then of the run's first clients, or as much of them as takes seconds. With a `placement`, at
    least as many clients train at once, whatever the run's own cohorts."""
    began = time.perf_counter()
    # A run reads all images sooner or later; those of the cache are mapped into memory then.
    prepared.data.dataset.train.pixels.amax()
    training, partition = prepared.experiment.training, prepared.data.partition
    federation, test = prepared.experiment.federation, len(prepared.data.dataset.test)
    drawn = Sampling(without=federation.without)
    cohort = sample_cohort(len(partition), federation.share, federation.seed, 1, drawn)
    if placement is not None:
        cohort *= -(-len(placement.devices) // len(cohort))
    placement = placement or prepared.placement
    workers, epochs = len(placement.devices), training.all_epochs
    at_once, batch = min(workers, len(cohort)), min(training.batch_size, int(partition.sizes.max()))
    parts = np.split(np.resize(partition.indices, at_once * batch), at_once)
    short = rates = _short_rounds(prepared, placement, 1, parts, min(FEW_IMAGES, test))
    epoch = epochs * short.visit  # seconds per image
    batches = int(LONGEST_VISIT / (epoch * batch))
    if batches * epochs > 1:
        parts = [partition.of(client)[: batches * batch] for client in cohort]
        visit = epoch * max(map(len, parts))
        parts = parts[: max(at_once, int(workers * LONGEST_ROUND / visit))]
        in_a_second = int(workers / max(short.scored, 1e-6))
        scored = min(test, max(FEW_IMAGES, min(workers * PART, in_a_second)))
        rates = _short_rounds(prepared, placement, epochs, parts, scored)
        rates = replace(rates, visits=short.visits + rates.visits, warm_up=short.warm_up)
    seconds = time.perf_counter() - began
    return replace(rates, peak=max(short.peak, rates.peak), seconds=seconds)


def _short_rounds(
    prepared: Prepared, placement: Placement, epochs: int, parts: Sequence[Integers], test: int
) -> Rates:
    """A run of clients that own `parts` of the images, scored on `test` images. The first rounds
    prepare kernels and leave memories; what they take is watched then, because watching takes
    time."""
    whole, workers = prepared.data.dataset, len(placement.devices)
    experiment = _shortened(prepared.experiment, len(parts), epochs)
    data = FederatedData(replace(whole, test=whole.test[:test]), Partition.of_parts([*parts]))
    runner = replace(
        prepared.runner, data=data, training=experiment.training, faults=None, attack=None
    )
    server = replace(prepared, experiment=experiment, runner=runner).server()
    before = named.snapshot(prepared.model)
    state = ServerState(0, before, {}, {})

    with tempfile.TemporaryDirectory() as folder:
        session = Session("trial", experiment, runner, placement, Path(folder) / "memories")
        with reproducible(experiment.engine.threads), on_this_machine(session) as engine:

            def trained() -> tuple[float, list[ClientReport]]:
                """The seconds of a round, and the reports of the clients that answered."""
                nonlocal state
                began = time.perf_counter()
                broadcast = server.broadcast(state)
                replies = engine.run(broadcast, range(len(parts)))
                state, reports = server.aggregate(state, broadcast, replies)
                engine.settle({report.client for report in reports if report.used})
                seconds = time.perf_counter() - began
                answered = [report for report in reports if report.outcome == "ok"]
                if not answered:
                    raise TooFewClients(f"no client could be trained: {reports[0].reason}")
                return seconds, answered

            def scoring() -> float:
                began = time.perf_counter()
                engine.begin_evaluation(state.weights)
                engine.end_evaluation()
                return time.perf_counter() - began

            try:
                with MemoryWatch(os.getpid(), SAMPLING) as watch:
                    beginning, _ = trained()
                    scoring()
                    trained()  # with what clients remember, the server shares, scoring left
                rounds = [trained()]
                while len(rounds) < REPEATS and sum(one[0] for one in rounds) < LONG_ENOUGH:
                    rounds.append(trained())
                evaluation = scoring() if test else 0.0
            finally:
                prepared.model.load_state_dict(before)
            kept = num_bytes(engine.memories[0])
    visits = [[report.metrics["seconds"] for report in reports] for _, reports in rounds]
    images, seconds = epochs * fmean(map(len, parts)), median(one for one, _ in rounds)
    sent, weights = rounds[-1][1][-1], num_bytes(server.broadcast(state).weights)
    scorers = min(workers, -(-test // PART))
    return Rates(
        visit=median(map(fmean, visits)) / images,
        overhead=seconds / median(makespan(one, workers) for one in visits),
        scored=evaluation * scorers / max(test, 1),
        warm_up=max(0.0, beginning - seconds),
        peak=watch.peak,
        cohort=len(parts),
        memory=kept,
        upload=max(0, sent.bytes_up - weights),  # less, where the weights are compressed
        up=sent.bytes_up,
        down=sent.bytes_down,
        state=sum(map(num_bytes, (state.weights, state.shared, state.slots, state.kept))),
        visits=sum(map(len, visits)),
    )


def _shortened(experiment: Experiment, clients: int, epochs: int) -> Experiment:
    federation, server = experiment.federation, experiment.server
    if server.replies_needed(clients, clients) > clients:
        server = replace(server, aggregation="uniform")
    return replace(
        experiment,
        data=replace(experiment.data, clients=clients),
        training=replace(experiment.training, epochs=epochs, head_epochs=0, lr=LEARNING_RATE),
        server=server,
        federation=replace(
            federation,
            participation=1.0,
            minimum_replies=1,
            deadline=10**6 if federation.deadline else 0.0,  # still in killable processes
        ),
        # Flower's own messages are not timed: its nodes start too slowly for a trial.
        engine=replace(experiment.engine, name="embedded"),
        output=replace(experiment.output, checkpoint=0),
        faults=FaultSettings(),
    )


@dataclass(frozen=True)
class Estimate:
    """The costs of a whole run, without the start of the program and the report."""

    round_seconds: float  # of a round, on average
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
    require_startable(experiment.engine)
    # This process makes room for the run.
    available = available_bytes() + memory_of(os.getpid())
    rates = measure(prepared)
    replies = experiment.federation.rounds * prepared.cohort
    return Estimate(
        round_seconds=fmean(_seconds(prepared, rates)),
        seconds=total_seconds(prepared, rates),
        peak_bytes=peak_bytes(prepared, rates),
        available_bytes=available,
        disk_bytes=_disk(prepared, rates),
        bytes_up=replies * rates.up,
        bytes_down=replies * rates.down,
        workers=len(prepared.placement.devices),
        visits=rates.visits,
        measured_seconds=rates.seconds,
    )


def total_seconds(prepared: Prepared, rates: Rates, begin: int = 0) -> float:
    """How long the rounds after `begin` take, with the clients that they will draw."""
    followed = _seconds(prepared, rates, begin)
    if not followed:
        return 0.0
    rest = prepared.experiment.federation.rounds - begin - len(followed)
    total = rates.warm_up + sum(followed) + rest * fmean(followed)
    if prepared.runner.keeps_own:  # at the end, every client's own model is scored
        workers, scoring = len(prepared.placement.devices), _scoring(prepared, rates)
        total += _visited(prepared) * makespan((), workers, scoring)
    return total


def _scoring(prepared: Prepared, rates: Rates) -> list[float]:
    """The seconds of each part of an evaluation."""
    parts = bounds(len(prepared.data.dataset.test), PART)
    return [(end - start) * rates.scored for start, end in parts]


def _seconds(prepared: Prepared, rates: Rates, begin: int = 0) -> list[float]:
    """How long each round takes. An evaluation runs while the next round trains, so it counts
    there; the last one counts with its own round."""
    federation, epochs = prepared.experiment.federation, prepared.experiment.training.all_epochs
    population, workers = prepared.experiment.data.population, len(prepared.placement.devices)
    images, scoring = epochs * prepared.data.sizes, _scoring(prepared, rates)
    rounds, pending = list[float](), list[float]()
    drawn = Sampling(without=federation.without)
    for number in range(begin + 1, min(federation.rounds, begin + FOLLOWED) + 1):
        cohort = sample_cohort(population, federation.share, federation.seed, number, drawn)
        visits = [images[client] * rates.visit for client in cohort]
        rounds.append(rates.overhead * makespan(visits, workers, pending))
        pending = scoring if federation.evaluates(number) else []
    return [*rounds[:-1], rounds[-1] + makespan((), workers, pending)] if rounds else []


def _visited(prepared: Prepared) -> int:
    """How many different clients will have trained; all of them, to be safe, in a long run."""
    federation, population = prepared.experiment.federation, prepared.experiment.data.population
    return min(population, federation.rounds * prepared.cohort)


def peak_bytes(prepared: Prepared, rates: Rates) -> int:
    """That of the short rounds, and what more clients than theirs leave in memory."""
    experiment = prepared.experiment
    weights, cohort = num_bytes(prepared.model.state_dict()), prepared.cohort
    budget = experiment.engine.memory_budget * 10**6
    kept = [min(budget, count * rates.memory) for count in (_visited(prepared), rates.cohort)]
    more = max(0, cohort - rates.cohort)
    keeps = experiment.server.aggregation in ROBUST or experiment.method.keeps_all
    copies = rates.upload + (weights if keeps else 0)
    workers = len(prepared.placement.devices)
    slots = slot_count(weights, workers) if workers > 1 else 0
    waiting = min(slots, cohort) - min(slots, rates.cohort)
    reply = weights + rates.upload + 2 * rates.memory  # the memory goes both ways
    return rates.peak + max(0, kept[0] - kept[1]) + more * copies + max(0, waiting) * reply


def _disk(prepared: Prepared, rates: Rates) -> int:
    """The models, the checkpoints with a partial one, the clients' memories and personal parts."""
    experiment = prepared.experiment
    weights = num_bytes(prepared.model.state_dict())
    best = weights if experiment.output.keep_best else 0
    runner = prepared.runner
    own = rates.memory if runner.method.has_own_model else num_bytes(runner.personal)
    models = weights + best + _visited(prepared) * own
    memories = _visited(prepared) * rates.memory
    if experiment.output.checkpoint == 0:
        return models + max(0, memories - experiment.engine.memory_budget * 10**6)
    return models + (KEPT + 1) * (rates.state + best + memories)
