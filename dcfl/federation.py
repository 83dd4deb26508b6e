"""The federated algorithm: sample clients, broadcast, train, average."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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


def sample_cohort(population: int, participation: float, seed: int, round: int) -> list[int]:
    """Draw the clients of a round without replacement, in ascending order. Depends on (seed, round)
    alone, so every method sees the same schedule."""
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
    asks_again: Callable[[Sequence[ClientReport]], bool] = lambda clients: False,
) -> Iterator[Round]:
    """Train from `state` up to round `rounds`, yielding after each round.

    The caller's loop evaluates, logs and decides when to stop. `asks_again`: whether a round that
    did not change the model is done once more, instead of being yielded.
    """
    while state.round < rounds:
        cohort = sample_cohort(server.population, participation, seed, state.round + 1)
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
