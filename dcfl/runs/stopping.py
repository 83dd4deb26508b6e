"""Trains rounds until all are done or the run is stopped.

A signal reaches all processes of a run and must not change what the run computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from dcfl.engines.engine import Engine
from dcfl.errors import ClientFailure, ClientLost
from dcfl.federation import Round
from dcfl.messages import Broadcast, ClientUpdate


class RoundAbandoned(Exception):
    """The run is stopping, and some of its clients' processes have already ended."""


@dataclass(frozen=True)
class Stoppable:
    """Abandons a round that loses clients while the run is stopping: finishing it without them
    would give another result than an uninterrupted run."""

    engine: Engine
    stopping: Callable[[], bool]

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for reply in self.engine.run(broadcast, cohort):
            if isinstance(reply, ClientLost) and self.stopping():
                raise RoundAbandoned
            yield reply

    def settle(self, accepted: Collection[int]) -> None:
        self.engine.settle(accepted)


def until_stopped(
    rounds: Iterator[Round], engine: Engine, stopping: Callable[[], bool]
) -> Iterator[tuple[Round, float]]:
    """Yield each round when its clients are done, with the seconds it took."""
    while not stopping():
        began = time.perf_counter()
        try:
            round = next(rounds, None)
        except RoundAbandoned:
            engine.settle(())  # restores the clients' memories
            return
        if round is None:
            return
        yield round, time.perf_counter() - began
