"""What a run will cost on this machine: time, memory, disk and traffic, from a short trial."""

from __future__ import annotations

import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcfl import tensors as named
from dcfl.data import FederatedData, Partition
from dcfl.data.client_data import bounds
from dcfl.data.splits.partition import Integers
from dcfl.engines.embedded import Embedded
from dcfl.engines.engine import Session
from dcfl.engines.placement import Placement
from dcfl.engines.pool import Pool
from dcfl.engines.regions import slot_count
from dcfl.engines.runner import reproducible
from dcfl.errors import TooFewClients
from dcfl.evaluation import PART
from dcfl.experiment import AttackSettings, Experiment, FaultSettings
from dcfl.federation import cohort_size, sample_cohort
from dcfl.messages import num_bytes
from dcfl.runs.checkpoints import KEPT
from dcfl.runs.connect import connect, on_this_machine
from dcfl.runs.folder import folder_for, require_unused, require_utf8
from dcfl.runs.prepare import Prepared
from dcfl.server import ClientReport, Server, ServerState
from dcfl.server.aggregation import ROBUST
from dcfl.system.json_types import Json
from dcfl.system.memory import MemoryWatch, available_bytes, memory_of


@dataclass(frozen=True)
class VisitCost:
    """Seconds of a client's visit: `visit + epochs (steps * step + images * image) + images *
    passed`."""

    visit: float  # whatever its images
    step: float  # whatever the batch
    image: float  # trained once
    passed: float = 0.0  # an image in the passes after training

    def seconds(self, images: int, batch_size: int, epochs: int) -> float:
        epoch = steps_of(images, batch_size) * self.step + images * self.image
        return self.visit + epochs * epoch + images * self.passed

    def scaled(self, factor: float) -> VisitCost:
        return VisitCost(*(factor * seconds for seconds in astuple(self)))


@dataclass(frozen=True)
class Rates:
    """What this machine takes for the parts of one experiment, with all workers busy."""

    first: VisitCost  # a client that remembers nothing yet
    later: VisitCost
    reply: float  # seconds of the server and the engine for each client
    scored: float  # seconds per test image
    warm_up: float  # seconds that the very first steps take longer
    crowd: Crowd
    sizes: Sizes
    visits: int  # of clients, that were timed
    seconds: float  # that measuring took


@dataclass(frozen=True)
class Crowd:
    """How workers slow each other down: they share caches, memory and perhaps cores."""

    size: int = 1  # workers that were busy when all else was measured
    alone: float = 1.0  # how many times as fast a worker is by itself

    def pace(self, busy: int, workers: int) -> float:
        """Of each busy worker, compared with a crowd that is as large as it gets."""
        largest = min(self.size, workers)
        idle = max(0, largest - busy)
        return 1 + (self.alone - 1) * idle / (largest - 1) if idle else 1.0


ALONE = Crowd()


@dataclass(frozen=True)
class Sizes:
    """Bytes."""

    peak: int  # of all processes, while `cohort` clients a round trained
    cohort: int
    remembering: int  # clients with a memory at the peak
    memory: int  # what a client keeps
    upload: int  # what it sends in addition to the weights
    up: int  # all that it sends
    down: int
    state: int  # the server's


def steps_of(images: int, batch_size: int) -> int:
    """Of an epoch; a last batch of one image is left out."""
    return images // batch_size + (images % batch_size > 1)


def fitted(seconds: Mapping[int, float], batch_size: int, passed: float) -> VisitCost:
    """The costs behind the seconds of visits of one epoch, by their number of images: two, a batch,
    and, if clients have so many, up to two batches. `passed` is known."""
    small, batch, *more = sorted(seconds)
    trained = {images: max(0.0, seconds[images] - images * passed) for images in seconds}
    image = max(0.0, (trained[batch] - trained[small]) / (batch - small))
    step = 0.0  # if an epoch is one step, its costs go with the visit
    if more and steps_of(more[0], batch_size) > 1:
        # Large clients have many more of these, so what the second step added must come out right.
        added = max(0.0, trained[more[0]] - trained[batch])
        image = min(image, added / (more[0] - batch))
        step = added - (more[0] - batch) * image
    return VisitCost(max(0.0, trained[batch] - step - batch * image), step, image, passed)


def images_within(
    seconds: float, cost: VisitCost, largest: int, batch_size: int, epochs: int
) -> int:
    """As many images as a visit of so many seconds has time for: all of the largest client's, or
    some full batches; 0 if there is no time for one."""
    sizes = (largest, *range(largest // batch_size * batch_size, 0, -batch_size))
    return next((n for n in sizes if cost.seconds(n, batch_size, epochs) <= seconds), 0)


def makespan(
    tasks: Iterable[float], workers: int, fillers: Iterable[float] = (), crowd: Crowd = ALONE
) -> float:
    """Seconds until all is done, the longest task first, then the fillers, each by whoever is free:
    as the pool gives them out. Tasks are as long as in the crowd."""
    waiting = deque((*sorted(tasks, reverse=True), *fillers))
    begun: list[float] = []  # what is left of them
    clock = 0.0
    while waiting or begun:
        while waiting and len(begun) < workers:
            begun.append(waiting.popleft())
        shortest = min(begun)
        clock += shortest / crowd.pace(len(begun), workers)
        begun = [left - shortest for left in begun if left > shortest]
    return clock


LEARNING_RATE = 1e-6
SAMPLING = 0.1  # seconds between two looks at the memory
# Rounds are repeated until they have taken so many seconds, because no single one is typical of a
# machine that does other things too.
SHORT_FOR, LONG_FOR, REPEATS = 0.3, 1.5, 10
# Longer visits, with all epochs, correct what follows from the short ones. A visit and a round of
# them may take so many seconds.
LONGEST_VISIT, LONGEST_ROUND = 2.0, 1.0
FEW_IMAGES = 100  # scored at first


@dataclass(frozen=True)
class Timed:
    """A round of a trial."""

    seconds: float
    reports: list[ClientReport]  # of the clients that answered

    @property
    def visits(self) -> list[float]:
        return [report.metrics["seconds"] for report in self.reports]


class Trial:
    def __init__(self, engine: Embedded | Pool, server: Server, state: ServerState) -> None:
        self._engine, self._server, self.state = engine, server, state
        self.rounds: list[Timed] = []
        self.peak = 0  # bytes of all processes

    def warm_up(self, cohort: Sequence[int]) -> Timed:
        """A round and an evaluation that prepare kernels. The memory is watched now, because
        watching takes time; a second round has what clients remember and the server shares."""
        with MemoryWatch(os.getpid(), SAMPLING) as watch:
            timed = self.round(cohort)
            if self._server.method.overrides("remember") or self.state.shared:
                self.round(cohort)
            self.scoring()
        self.peak = watch.peak
        return timed

    def round(self, cohort: Sequence[int]) -> Timed:
        server = self._server
        if server.wanted(len(cohort)) > len(cohort):  # a robust rule that needs more replies
            plain = replace(server.settings, aggregation="uniform")
            server = replace(server, settings=plain)
        began = time.perf_counter()
        broadcast = server.broadcast(self.state)
        replies = self._engine.run(broadcast, cohort)
        self.state, reports = server.aggregate(self.state, broadcast, replies)
        self._engine.settle({report.client for report in reports if report.used})
        seconds = time.perf_counter() - began
        answered = [report for report in reports if report.outcome == "ok"]
        if not answered:
            raise TooFewClients(f"no client could be trained: {reports[0].reason}")
        self.rounds.append(Timed(seconds, answered))
        return self.rounds[-1]

    def repeated(self, cohort: Sequence[int], seconds: float) -> list[Timed]:
        timed = [self.round(cohort)]
        while len(timed) < REPEATS and sum(one.seconds for one in timed) < seconds:
            timed.append(self.round(cohort))
        return timed

    def crowd(self, clients: Sequence[int], together: Timed) -> Crowd:
        """How much faster the first of these clients is alone than it was together with others."""
        if len(clients) == 1:
            return ALONE
        seconds = dict(zip([one.client for one in together.reports], together.visits, strict=True))
        alone = seconds.get(clients[0], median(together.visits)) / self.round(clients[:1]).visits[0]
        # Nobody is slower alone, or faster than with all cores to itself.
        return Crowd(len(clients), min(max(1.0, alone), float(len(clients))))

    @property
    def weights_sent(self) -> int:
        """Bytes of the weights in a message, which are all but what is frozen or personal."""
        return num_bytes(self._server.broadcast(self.state).weights)

    def memory_of(self, client: int) -> int:
        """Bytes that a client keeps between its rounds."""
        return num_bytes(self._engine.memories[client])

    def scoring(self) -> float:
        """Seconds of an evaluation."""
        began = time.perf_counter()
        self._engine.begin_evaluation(self.state.weights)
        self._engine.end_evaluation()
        return time.perf_counter() - began


@contextmanager
def trial(
    prepared: Prepared, placement: Placement, epochs: int, parts: Sequence[Integers], test: int
) -> Iterator[Trial]:
    """A run of `prepared` with clients that own `parts` of the images, scored on `test` images."""
    whole, runner = prepared.data.dataset, prepared.runner
    experiment = _short(prepared.experiment, len(parts), epochs)
    data = FederatedData(replace(whole, test=whole.test[:test]), Partition.of_parts(parts))
    runner = replace(
        runner, data=data, training=experiment.training, faults=FaultSettings(), attack=None
    )
    cut = replace(prepared, experiment=experiment, data=data, runner=runner)
    before = named.snapshot(prepared.model)
    try:
        with tempfile.TemporaryDirectory() as folder:
            session = Session("trial", experiment, runner, placement, Path(folder) / "memories")
            with reproducible(experiment.engine.threads), on_this_machine(session) as engine:
                yield Trial(engine, cut.server(), ServerState(0, before, {}, {}))
    finally:
        prepared.model.load_state_dict(before)


def _short(experiment: Experiment, clients: int, epochs: int) -> Experiment:
    federation = experiment.federation
    return replace(
        experiment,
        data=replace(experiment.data, clients=clients),
        training=replace(experiment.training, epochs=epochs, head_epochs=0, lr=LEARNING_RATE),
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
        attack=AttackSettings(),
    )


class _Found(NamedTuple):
    """What one trial showed."""

    first: VisitCost
    later: VisitCost
    reply: float
    scored: float
    warm_up: float
    crowd: Crowd
    sizes: Sizes
    visits: int


def measure(prepared: Prepared, placement: Placement | None = None) -> Rates:
    """Train short rounds in as many processes as the run would use. With a `placement`, that many
    clients train at once, whatever the run's own cohorts."""
    at_once = len(placement.devices) if placement else _at_once(prepared)
    placement = placement or prepared.placement
    began = time.perf_counter()
    # A run reads all images sooner or later; those of the cache are mapped into memory then.
    prepared.data.dataset.train.pixels.amax()
    short = _short_visits(prepared, placement, at_once)
    found = _longer_visits(prepared, placement, at_once, short)
    first, later, reply, scored, warm_up, crowd, sizes, visits = found
    return Rates(
        first=first,
        later=later,
        reply=reply,
        scored=scored,
        warm_up=warm_up,
        crowd=crowd,
        sizes=replace(sizes, peak=max(sizes.peak, short.sizes.peak)),
        visits=visits,
        seconds=time.perf_counter() - began,
    )


def _short_visits(prepared: Prepared, placement: Placement, at_once: int) -> _Found:
    """Clients of two images, a batch and two batches, for one epoch."""
    experiment, workers = prepared.experiment, len(placement.devices)
    batch, largest = experiment.training.batch_size, int(prepared.data.partition.sizes.max())
    sizes = sorted({2, max(3, min(batch, largest)), max(3, min(2 * batch, largest))})
    groups = [range(n * at_once, (n + 1) * at_once) for n in range(len(sizes) + 1)]
    own = [size for size in (sizes[1], *sizes) for _ in range(at_once)]
    test = min(FEW_IMAGES, len(prepared.data.dataset.test))
    remembers = experiment.method.overrides("remember")
    first, later = {}, {}
    with trial(prepared, placement, 1, _cut(prepared.data.partition, own), test) as short:
        beginning = short.warm_up(groups[0])
        for size, clients in zip(sizes, groups[1:], strict=True):
            if remembers:  # otherwise a first visit is like any other
                first[size] = short.round(clients)
            later[size] = short.repeated(clients, SHORT_FOR)
        crowd = short.crowd(groups[2], _middle(later[sizes[1]]))
        scored = short.scoring() / test if test else 0.0
        found = _sizes(short, groups[0])
    typical = {size: _middle(rounds) for size, rounds in later.items()}
    scored *= crowd.alone  # one worker did it
    passed = scored * experiment.method.cost.passes
    usual = fitted({n: median(one.visits) for n, one in typical.items()}, batch, passed)
    begun = fitted({n: median(one.visits) for n, one in (first or typical).items()}, batch, passed)
    return _Found(
        first=begun,
        later=usual,
        reply=_reply_seconds(later[sizes[1]], workers),
        scored=scored,
        warm_up=max(0.0, beginning.seconds - typical[sizes[1]].seconds),
        crowd=crowd,
        sizes=found,
        visits=sum(len(one.reports) for one in short.rounds),
    )


def _longer_visits(prepared: Prepared, placement: Placement, at_once: int, short: _Found) -> _Found:
    """Corrected by visits with all epochs, if there is time for any."""
    training, workers = prepared.experiment.training, len(placement.devices)
    parts = _long_parts(prepared, workers, at_once, short)
    if not parts:
        return short
    remembers = prepared.experiment.method.overrides("remember")
    test = _scored_within_a_second(len(prepared.data.dataset.test), workers, short.scored)
    with trial(prepared, placement, training.all_epochs, [*parts, *parts], test) as longer:
        clients, fresh = range(len(parts)), range(len(parts), 2 * len(parts))
        longer.warm_up(clients)
        first = [longer.round(fresh)] if remembers else []
        rounds = longer.repeated(fresh, LONG_FOR)
        crowd = longer.crowd(fresh[:at_once], _middle(rounds))
        scoring = longer.scoring() if test else 0.0
        sizes = _sizes(longer, clients)

    def corrected(cost: VisitCost, rounds: Sequence[Timed]) -> VisitCost:
        batch, epochs = training.batch_size, training.all_epochs
        expected = sum(cost.seconds(len(part), batch, epochs) for part in parts)
        return cost.scaled(median(sum(one.visits) for one in rounds) / expected)

    scorers = min(workers, -(-test // PART))
    return short._replace(
        first=corrected(short.first, first or rounds),
        later=corrected(short.later, rounds),
        reply=_reply_seconds(rounds, workers),
        scored=scoring * scorers / max(test, 1) * (crowd.alone if scorers < workers else 1.0),
        crowd=crowd,
        sizes=sizes,
        visits=short.visits + sum(len(one.reports) for one in longer.rounds),
    )


def _long_parts(
    prepared: Prepared, workers: int, at_once: int, short: _Found
) -> list[NDArray[np.int32]]:
    """The images of the run's first clients, or as many of them as there is time for. A multiple of
    `at_once`, so that all of them train in the crowd."""
    training, partition = prepared.experiment.training, prepared.data.partition
    federation = prepared.experiment.federation
    cohort = sample_cohort(len(partition), federation.share, federation.seed, 1)
    cohort *= -(-at_once // len(cohort))  # enough for everybody
    largest = max(len(partition.of(client)) for client in cohort)
    batch, epochs = training.batch_size, training.all_epochs
    most = images_within(LONGEST_VISIT, short.later, largest, batch, epochs)
    if not most:
        return []
    longest = short.later.seconds(most, batch, epochs) + short.reply
    together = min(len(cohort), int(workers * LONGEST_ROUND / longest)) // at_once
    return [partition.of(client)[:most] for client in cohort[: at_once * max(1, together)]]


def _scored_within_a_second(images: int, workers: int, seconds: float) -> int:
    """How many test images, of at most a part for each worker."""
    return min(images, max(FEW_IMAGES, min(workers * PART, int(workers / max(seconds, 1e-6)))))


def _at_once(prepared: Prepared) -> int:
    """How many clients of the run train at the same time."""
    experiment = prepared.experiment
    cohort = cohort_size(experiment.data.population, experiment.federation.share)
    return min(len(prepared.placement.devices), cohort)


def _cut(partition: Partition, sizes: Sequence[int]) -> list[Integers]:
    """Parts of these sizes; an image may be in several."""
    taken = np.resize(partition.indices, sum(sizes))
    return np.split(taken, np.cumsum(sizes)[:-1])


def _middle(rounds: Sequence[Timed]) -> Timed:
    return sorted(rounds, key=lambda one: one.seconds)[len(rounds) // 2]


def _reply_seconds(rounds: Sequence[Timed], workers: int) -> float:
    """What a round takes beyond its clients' own visits, for each of the busiest worker's."""
    shares = [
        (one.seconds - makespan(one.visits, workers)) / -(-len(one.visits) // workers)
        for one in rounds
    ]
    return max(0.0, median(shares))


def _sizes(trial: Trial, clients: Sequence[int]) -> Sizes:
    """`clients`: those that the trial was warmed up with."""
    state, sent = trial.state, trial.rounds[-1].reports[-1]
    weights = num_bytes(state.weights)
    return Sizes(
        peak=trial.peak,
        cohort=len(clients),
        remembering=len(clients),
        memory=trial.memory_of(clients[0]),
        upload=sent.bytes_up - trial.weights_sent,
        up=sent.bytes_up,
        down=sent.bytes_down,
        state=weights + num_bytes(state.shared) + num_bytes(state.slots),
    )


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
