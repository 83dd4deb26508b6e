"""A federation over virtual time: one generator for rounds, FedBuff and FedAsync.

When a visit ends follows from the client's device and the sizes of its messages, before it is
trained. So a step first works out which replies are in it, and then trains these alone: a client
that is late, drops out or is not needed costs nothing, and what is in flight is numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dcfl.clock.devices import DAY, Availability, Devices
from dcfl.clock.selection import LEARNING, SELECTIONS, Asking, Selection
from dcfl.clock.settings import ClockSettings
from dcfl.clock.state import ClockState, Flight, Known
from dcfl.errors import ClientFailure, ClientLate, TooFewClients
from dcfl.federation import Backend, Round, cohort_size, round_of
from dcfl.messages import Broadcast, ClientUpdate, num_bytes
from dcfl.methods.method import addressed
from dcfl.seeding import derived_seed
from dcfl.server import ClientReport, Server, ServerState
from dcfl.server.validation import check_like

PAUSE = 600.0  # virtual seconds until the server looks again whether somebody can be asked
LONGEST_PAUSE = 7 * DAY


@dataclass(frozen=True)
class Clock:
    """Who is asked, and how long everybody takes: all of it follows from these fields."""

    server: Server
    settings: ClockSettings
    participation: float
    seed: int
    sizes: NDArray[np.int64]  # images of each client
    selection: Selection = "uniform"
    devices: Devices | None = None  # None: visits take no time
    availability: Availability = Availability()
    without: frozenset[int] = frozenset()  # clients that are never asked

    @cached_property
    def cohort(self) -> int:
        return cohort_size(self.server.population, self.participation)

    @cached_property
    def passes(self) -> float:
        """A visit's work, in FedAvg's passes over its images: a backward counts as two forwards."""
        cost, epochs = self.server.method.cost, self.server.training.all_epochs
        return (epochs * (cost.forwards + 2 * cost.backwards) + cost.passes) / 3

    def visit(self, client: int, broadcast: Broadcast, now: float) -> Flight:
        """What becomes of a client that is asked now."""
        number = broadcast.round
        if self.devices is None:
            return Flight(now, client, number, now)
        device = self.devices.of(client, self.seed)
        message = addressed(broadcast, self.server.method, client)
        received = now + device.receiving(message.num_bytes)
        trained = received + self.passes * int(self.sizes[client]) * device.seconds_per_sample
        ended, lost = trained + device.sending(self._bytes_up(broadcast)), ""
        model = num_bytes(self.server.compression.model_like(broadcast))
        needed = (4 + self.server.method.cost.copies) * model / 1e6
        if needed > device.memory:
            ended = received
            lost = f"it needs {needed:.0f} MB, and its device has {device.memory:g}"
        draws = np.random.default_rng(derived_seed(self.seed, number, client, "drop-out"))
        drawn, moment = draws.random(2).tolist()
        if drawn < self.settings.drop_out:
            ended, lost = now + moment * (ended - now), "it dropped out in the middle of its visit"
        until = self.availability.until(client, now, self.seed)
        if until is not None and ended > until:
            ended, lost = until, "its device went away before its reply had arrived"
        return Flight(ended, client, number, now, lost)

    def _bytes_up(self, broadcast: Broadcast) -> int:
        """Of every reply."""
        weights = self.server.compression.update_like(broadcast)
        return ClientUpdate(0, weights, self.server.upload or {}, 0, 0, {}).num_bytes

    def adjusted(self, reply: ClientUpdate, base: Broadcast, present: Broadcast) -> ClientUpdate:
        """The reply as the server's mean takes it: as if it had begun from the present model.

        With tau steps between the two, s = (1 + tau)^-a and w what is sent now,

            w + s (w_i - w_base)          FedBuff, and replies of a round before
            w + alpha s (w_i - w)         FedAsync

        FedBuff: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS
        2022. FedAsync: Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.
        Running statistics are mixed by FedAsync, and else as they came: changes could make a
        variance negative.
        """
        mixed = self.settings.mode == "fedasync"
        if base is present and not mixed:
            return reply  # as it is, for the plain run's bits
        check_like(reply.weights, base.weights, "weights")
        share = (1.0 + present.round - base.round) ** -self.settings.staleness
        if mixed:
            share *= self.settings.mixing

        def moved(name: str, tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() or not (mixed or name in self.server.trainable):
                return tensor
            now = present.weights[name].double()
            change = tensor.double() - (now if mixed else base.weights[name].double())
            return now.add(change, alpha=share).to(tensor.dtype)

        return replace(reply, weights={name: moved(name, t) for name, t in reply.weights.items()})


class Step:
    """From one broadcast to the next: who is asked meanwhile, and whose visit ends."""

    def __init__(self, clock: Clock, state: ClockState, broadcast: Broadcast) -> None:
        self._clock, self._state, self._broadcast = clock, state, broadcast
        self._sent = {**state.sent, broadcast.round: broadcast}
        self.now, self.ended = state.now, list[Flight]()
        self.flying = [*state.flights]  # a heap: the next to end is the first
        heapq.heapify(self.flying)
        self._taken = {flight.client for flight in self.flying}
        self._times_asked = 0
        self._received: dict[int, Broadcast] = {}  # unpacked, by round
        if clock.settings.asynchronous:
            self._fill_the_buffer()
        else:
            self._round()

    def _round(self) -> None:
        """Until the cohort has replied, everybody is lost, or the deadline has come."""
        clock, settings = self._clock, self._clock.settings
        asked = self._ask(ceil(clock.cohort * settings.over_selection - 1e-9))
        while not self.flying:
            self._pause()
            asked = self._ask(ceil(clock.cohort * settings.over_selection - 1e-9))
        own = {flight.client for flight in asked or self.flying}
        waiting, missing = len(own), clock.cohort
        end = self.now + (settings.deadline or inf)
        while waiting and missing:
            # A step needs a reply, or somebody to call late.
            if self.flying[0].ended > end and (self.ended or settings.late == "drop"):
                self.now = end
                break
            flight = self._next()
            waiting -= flight.client in own
            missing -= flight.client in own and not flight.lost
        if settings.late == "drop":
            why = (
                f"{clock.cohort} others were quicker"
                if missing == 0
                else (f"no reply within {settings.deadline:g} virtual seconds")
            )
            late = [one._replace(ended=self.now, lost=why, late=True) for one in self.flying]
            self.ended, self.flying = [*self.ended, *late], []

    def _fill_the_buffer(self) -> None:
        """Until enough have replied; whoever is done is replaced, unless that ends the step."""
        missing = self._clock.settings.replies(self._clock.cohort)
        while missing:
            self._ask(self._clock.cohort - len(self.flying))
            if not self.flying:
                if self.ended:
                    return
                self._pause()
                continue
            moment = self.flying[0].ended
            while missing and self.flying and self.flying[0].ended == moment:
                missing -= not self._next().lost

    def _next(self) -> Flight:
        flight = heapq.heappop(self.flying)
        self.now = flight.ended
        self.ended.append(flight)
        return flight

    def _ask(self, size: int) -> list[Flight]:
        """Nobody twice in a step: it would be trained on the same model with the same draws."""
        clock, number = self._clock, self._broadcast.round
        if size <= 0:
            return []

        def free(client: int) -> bool:
            if client in self._taken:
                return False
            return clock.availability.until(client, self.now, clock.seed) is not None

        again = [self._times_asked + 2] if self._times_asked else []
        asking = Asking(
            [clock.seed, number, *again],
            number,
            clock.server.population,
            clock.sizes,
            self._state.known,
            free,
            clock.without,
        )
        chosen = sorted(SELECTIONS[clock.selection](asking, size))
        flights = [clock.visit(client, self._broadcast, self.now) for client in chosen]
        for flight in flights:
            heapq.heappush(self.flying, flight)
        self._taken.update(chosen)
        self._times_asked += 1
        return flights

    def _pause(self) -> None:
        self.now += PAUSE
        if self.now - self._state.now > LONGEST_PAUSE:
            raise TooFewClients(
                f"round {self._broadcast.round}: nobody can be asked for "
                f"{LONGEST_PAUSE / DAY:g} virtual days (clock.availability)"
            )

    def replies(self, backend: Backend) -> Iterator[ClientUpdate | ClientFailure]:
        """Train those whose replies are in the step, from the model that each of them got."""
        for number, group in groupby(sorted(self.ended, key=_by_model), lambda one: one.round):
            flights = [*group]
            for one in flights:
                if one.lost:
                    kind = ClientLate if one.late else ClientFailure
                    yield kind(one.client, one.lost)
            asked = [one.client for one in flights if not one.lost]
            if asked:
                yield from backend.run(self._sent[number], asked)

    def understood(self, reply: ClientUpdate, present: Broadcast) -> ClientUpdate:
        """A reply, unpacked by the model that its client got, as the server's mean takes it."""
        number = next(one.round for one in self.ended if one.client == reply.client)
        compression = self._clock.server.compression
        if number not in self._received:
            here = number == present.round
            self._received[number] = present if here else compression.received(self._sent[number])
        base = self._received[number]
        return self._clock.adjusted(compression.received_update(reply, base), base, present)

    def reports(self, reports: Sequence[ClientReport]) -> list[ClientReport]:
        found = {flight.client: flight for flight in self.ended}
        timed = self._clock.devices is not None
        return [
            replace(
                report,
                began=found[report.client].began if timed else None,
                ended=found[report.client].ended if timed else None,
                staleness=self._broadcast.round - found[report.client].round,
            )
            for report in sorted(reports, key=lambda report: report.client)
        ]

    def state(self, reports: Collection[ClientReport]) -> ClockState:
        known = dict(self._state.known)
        if self._clock.selection in LEARNING:
            for report in reports:
                if report.outcome == "ok" and "loss" in report.metrics:
                    seconds = (report.ended or 0.0) - (report.began or 0.0)
                    known[report.client] = Known(
                        self._broadcast.round, report.metrics["loss"], report.num_examples, seconds
                    )
        kept = {flight.round for flight in self.flying}
        needed = {number: one for number, one in self._sent.items() if number in kept}
        return ClockState(self.now, tuple(sorted(self.flying)), known, needed)


def _by_model(flight: Flight) -> tuple[int, int]:
    return flight.round, flight.client


def federate_by_clock(
    clock: Clock,
    backend: Backend,
    state: ServerState,
    rounds: int,
    asks_again: Callable[[Sequence[ClientReport]], bool] = lambda clients: False,
) -> Iterator[Round]:
    """As `federate`, with the clients that the clock says. A round ends whenever the server's model
    moves; `state.clock` holds the time and what is in flight."""
    server = clock.server
    while state.round < rounds:
        broadcast = server.broadcast(state)
        before = state.clock or ClockState()
        step = Step(clock, before, broadcast)
        replies = step.replies(backend)
        after, clients = server.aggregate(state, broadcast, replies, step.understood)
        used = {client.client for client in clients if client.used}
        backend.settle(used)
        if used or not asks_again(clients):
            clients = step.reports(clients)
            done = round_of(replace(after, clock=step.state(clients)), clients)
            state = done.state
            yield done
