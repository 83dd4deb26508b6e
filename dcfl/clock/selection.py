"""Which clients are asked, by name. Drawn from (seed, round, and how often the round has asked)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dcfl.clock.state import Known

Selection = Literal["uniform", "samples", "power-of-choice", "oort"]
LEARNING = ("power-of-choice", "oort")  # go by what clients have reported
CANDIDATES = 2  # power-of-choice: d, as a multiple of the clients that are asked

# Oort's constants, as in its paper; the preferred time is a quantile instead of paced.
CUTOFF, SLOWNESS, PREFERRED = 0.95, 2.0, 0.5
EXPLORED, DECAY, LEAST_EXPLORED = 0.9, 0.98, 0.2


@dataclass(frozen=True)
class Asking:
    """A moment at which the server asks clients."""

    key: Sequence[int]  # what the draws follow from
    round: int
    population: int
    examples: NDArray[np.int64] | None  # of each client, if the server may know
    known: Mapping[int, Known]
    free: Callable[[int], bool]  # who can be asked
    without: Collection[int] = ()  # clients that never are

    def draw(
        self,
        size: int,
        among: Callable[[int], bool] = lambda client: True,
        by_size: bool = False,
        stream: int = 0,
    ) -> list[int]:
        """So many clients, or as many as there are, without replacement, in the order drawn; with
        a probability in proportion to their images, if `by_size` and the server knows them. The
        first try is `sample_cohort`'s draw, so that nothing differs where everybody is free; as
        there, the places of clients that are left out go to others."""
        asked = size = min(size, self.population)
        shares = None
        if by_size and self.examples is not None:
            images = np.maximum(self.examples, 1)
            shares = images / images.sum()
        while size:
            rng = np.random.default_rng([*self.key, *([stream] if stream else [])])
            drawn = rng.choice(self.population, asked, replace=False, p=shares)
            found = [client for client in drawn.tolist() if self.free(client) and among(client)]
            if len(found) >= size or asked == self.population:
                return self._replaced(found[:size], among, shares, rng)
            asked = min(self.population, 4 * asked)
        return []

    def _replaced(
        self,
        drawn: list[int],
        among: Callable[[int], bool],
        shares: NDArray[np.float64] | None,
        rng: np.random.Generator,
    ) -> list[int]:
        if not (gone := {*drawn}.intersection(self.without)):
            return drawn
        taken = {*drawn, *self.without}
        rest = [
            client
            for client in range(self.population)
            if client not in taken and self.free(client) and among(client)
        ]
        places = min(len(gone), len(rest))
        others = shares[rest] / shares[rest].sum() if shares is not None and rest else None
        more = iter(rng.choice(rest, places, replace=False, p=others).tolist() if rest else [])
        kept = (next(more, None) if client in gone else client for client in drawn)
        return [client for client in kept if client is not None]


def power_of_choice(asking: Asking, size: int) -> list[int]:
    """Candidates by their images; of these, those whose last loss was the highest. Cho, Wang and
    Joshi, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022: the
    variant rpow-d, which sends no message and takes a client never asked for the worst."""
    candidates = asking.draw(CANDIDATES * size, by_size=True)
    last = {client: one.loss for client, one in asking.known.items()}
    return sorted(candidates, key=lambda client: -last.get(client, inf))[:size]


def oort(asking: Asking, size: int) -> list[int]:
    """Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI 2021,
    Algorithm 1: a share of clients never asked, and of the others those of high utility."""
    share = max(LEAST_EXPLORED, EXPLORED * DECAY ** (asking.round - 1))
    worth = {c: u for c, u in utilities(asking.known, asking.round).items() if asking.free(c)}
    wanted = min(size - round(share * size), len(worth))
    chosen: list[int] = []
    if wanted:
        least = CUTOFF * sorted(worth.values(), reverse=True)[wanted - 1]
        best = [client for client in sorted(worth) if worth[client] >= least]
        weights = np.array([worth[client] for client in best])
        shares = weights / weights.sum() if weights.sum() > 0 else None
        rng = np.random.default_rng([*asking.key, 1])
        drawn = rng.choice(len(best), wanted, replace=False, p=shares)
        chosen = [best[at] for at in drawn.tolist()]
    chosen += asking.draw(size - len(chosen), lambda client: client not in asking.known)
    missing, taken = size - len(chosen), {*chosen}
    return chosen + asking.draw(missing, lambda client: client not in taken, stream=2)


def utilities(known: Mapping[int, Known], round: int) -> dict[int, float]:
    """Eq. 2, and for uncertainty as in Algorithm 1. The mean loss stands for the root of the mean
    square, which no client sends; the preferred time T is the median of the known visits."""
    if not known:
        return {}
    preferred = float(np.quantile([one.seconds for one in known.values()], PREFERRED))
    found = {}
    for client, one in known.items():
        utility = one.examples * one.loss + sqrt(0.1 * log(round) / one.round)
        slow = one.seconds > preferred
        found[client] = utility * ((preferred / one.seconds) ** SLOWNESS if slow else 1.0)
    return found


SELECTIONS: Mapping[Selection, Callable[[Asking, int], list[int]]] = {
    "uniform": lambda asking, size: asking.draw(size),
    "samples": lambda asking, size: asking.draw(size, by_size=True),
    "power-of-choice": power_of_choice,
    "oort": oort,
}
