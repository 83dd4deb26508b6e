"""The algorithm: rounds of sampling, sending, training and averaging."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dcfl.errors import ClientFailure
from dcfl.messages import Broadcast, ClientUpdate
from dcfl.server.server import ClientReport, Server, ServerState


class Backend(Protocol):
    """Where clients run."""

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """One reply per client of the cohort, in the cohort's order.

        A reply's weights may lie in memory that is used again as soon as the next one is asked for.
        """

    def settle(self, accepted: Collection[int]) -> None:
        """The round is over, and these clients' replies were used: what they keep is theirs. The
        others, those of a round that changed nothing included, go on from what they kept before."""


class Round(NamedTuple):
    """What a round leaves behind: the server's state, and what became of each sampled client."""

    state: ServerState
    clients: list[ClientReport]


def cohort_size(population: int, participation: float) -> int:
    """Rounded to the nearest, because int(0.29 * 100) is 28; at least one."""
    return max(1, round(participation * population))


def sample_cohort(population: int, participation: float, seed: int, round: int) -> list[int]:
    """Clients without replacement, in ascending order; a function of (seed, round) alone, so that
    every method sees the same schedule."""
    rng = np.random.default_rng([seed, round])
    size = cohort_size(population, participation)
    return sorted(int(client) for client in rng.choice(population, size, replace=False))


def federate(
    server: Server,
    backend: Backend,
    state: ServerState,
    rounds: int,
    participation: float,
    seed: int,
) -> Iterator[Round]:
    """Train from `state` up to round `rounds`, yielding after each one.

    Evaluation, logging and early stop are the caller's loop.
    """
    while state.round < rounds:
        cohort = sample_cohort(server.population, participation, seed, state.round + 1)
        broadcast = server.broadcast(state)
        state, clients = server.aggregate(state, broadcast, backend.run(broadcast, cohort))
        backend.settle({client.client for client in clients if client.used})
        yield Round(state, clients)
