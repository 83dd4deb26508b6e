"""The federated algorithm: sample clients, broadcast, train, average."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np

from dcfl.errors import ClientFailure
from dcfl.messages import LOG, Broadcast, ClientUpdate
from dcfl.server.server import ClientReport, Server, ServerState


class Backend(Protocol):
    """Runs the clients of a round."""

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield one reply per client, in the cohort's order.

        The next reply may reuse the memory of this one: copy what you keep.
        """

    def settle(self, accepted: Collection[int]) -> None:
        """End the round. The accepted clients keep their new memories; all others fall back to
        their previous ones, as if they had not trained."""


class Round(NamedTuple):
    """The result of a round: the server's state and a report on each sampled client."""

    state: ServerState
    clients: list[ClientReport]
    logged: Mapping[str, float] = MappingProxyType({})  # numbers of the server's own


def cohort_size(population: int, participation: float) -> int:
    """Clients per round, at least one. Rounded, because int(0.29 * 100) is 28."""
    return max(1, round(participation * population))


@dataclass(frozen=True)
class Sampling:
    """How the clients of a round are drawn."""

    poisson: bool = (
        False  # each by a coin of its own, instead of a fixed number without replacement
    )
    without: tuple[int, ...] = ()  # clients that are never drawn
    secret: bool = False  # by the operating system, instead of from (seed, round)
    in_turn: bool = False  # in an order that stays the same, everybody once before anybody again

    def clients(self, population: int) -> int:
        return population - len(self.without)

    def expected(self, population: int, participation: float) -> float:
        """The size of a cohort, on average; it depends on no data. Of coins and turns, those of
        clients that are left out count, because nobody takes their places."""
        if self.poisson:
            return participation * population
        size = cohort_size(population, participation)
        return size if self.in_turn else min(size, self.clients(population))


FIXED = Sampling()


def sample_cohort(
    population: int, participation: float, seed: int, round: int, sampling: Sampling = FIXED
) -> list[int]:
    """Draw the clients of a round, in ascending order. Depends on (seed, round) alone, so every
    method sees the same schedule.

    Who is drawn does not change if others are left out: their places in the cohort go to clients
    drawn from the rest, so that a cohort is again a uniform draw, of as many. In turn, and with
    coins, their places stay empty.
    """
    size = cohort_size(population, participation)
    if sampling.in_turn:
        order = np.random.default_rng([seed, 0]).permutation(population)
        asked = order.take(range((round - 1) * size, round * size), mode="wrap")
        return sorted({*asked.tolist()}.difference(sampling.without))
    rng = np.random.default_rng(secrets.randbits(256) if sampling.secret else [seed, round])
    if sampling.poisson:
        drawn = np.flatnonzero(rng.random(population) < participation)
    else:
        drawn = rng.choice(population, size, replace=False)
    cohort = {int(client) for client in drawn}.difference(sampling.without)
    if sampling.without and not sampling.poisson:
        rest = sorted({*range(population)}.difference(cohort, sampling.without))
        places = min(len(drawn) - len(cohort), len(rest))
        cohort.update(int(client) for client in rng.choice(rest, places, replace=False))
    return sorted(cohort)


def federate(
    server: Server,
    backend: Backend,
    state: ServerState,
    rounds: int,
    participation: float,
    seed: int,
    asks_again: Callable[[Sequence[ClientReport]], bool] = lambda clients: False,
    sampling: Sampling = FIXED,
) -> Iterator[Round]:
    """Train from `state` up to round `rounds`, yielding after each round.

    The caller's loop evaluates, logs and decides when to stop. `asks_again`: whether a round that
    did not change the model is done once more, instead of being yielded.
    """
    while state.round < rounds:
        cohort = sample_cohort(server.population, participation, seed, state.round + 1, sampling)
        broadcast = server.broadcast(state)
        after, clients = server.aggregate(state, broadcast, backend.run(broadcast, cohort))
        used = {client.client for client in clients if client.used}
        backend.settle(used)
        if used or not asks_again(clients):
            done = round_of(after, clients)
            state = done.state
            yield done


def round_of(after: ServerState, clients: list[ClientReport]) -> Round:
    """What the server has logged is taken out of what is shared."""
    rest = {name: one for name, one in after.shared.items() if not name.startswith(LOG)}
    logged = {
        name.removeprefix(LOG): float(after.shared[name])
        for name in after.shared
        if name not in rest
    }
    return Round(replace(after, shared=rest) if logged else after, clients, logged)
