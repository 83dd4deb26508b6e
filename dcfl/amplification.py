"""What noise at the server is worth, by how the clients of a round are chosen.

Whoever is protected against sees the models. If clients are drawn at random, nobody else knows whom
a round had, and a client is hidden by the noise and by the chance that it was not there:

    coins    a client is there or not, which is one clip; by privacy loss distributions (PLD), tight
             but for their rounding, which errs on the high side
    fixed    a client's images are others, which is two clips; by Renyi divergences (RDP; Wang,
             Balle and Kasiviswanathan 2019), an upper bound that is far from tight

In turn, everybody may know who was there, and there is only the noise. That of a round can take
back part of the noise of the rounds before it (Kairouz and others 2021; Choquette-Choo and others
2023). With X the rounds' sums and Z independent noise, one row a round, the server uses

    X + C^-1 Z = C^-1 (C X + Z),    C[t, t - k] = c_k  for 0 <= k < bands,    c_0 = 1

and C X + Z is a Gaussian mechanism. A client that is in rounds at least `bands` apart moves C X by
the length of the columns of its rounds together, as columns so far apart share no row. Toeplitz
columns are shorter the later they begin, so the first client of the first round moves it furthest.
The c_k are the first of the square root of the matrix of ones, (2k choose k) / 4^k, which leave
hardly more noise in the model than the best (Kalinin and Lampert 2024), in whole 16ths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from dcfl.errors import ConfigError
from dcfl.federation import Sampling, cohort_size
from dcfl.system.wording import install_command

INTERVAL = 1e-3  # between the privacy losses that are told apart; they are rounded up to it
# Renyi orders, of which the best counts: a third of dp-accounting's own, in a quarter of the time.
ORDERS = (*(1 + step / 4 for step in range(1, 12)), *range(4, 24), 28, 32, 48, 64, 128, 256)
NOISIEST = 1e6  # where a search for noise gives up
# What the c_k are multiples of one over. With 16 they leave up to 1 % more noise than exact ones.
GRAIN = 16
MOST_BANDS = 64  # the server keeps the noise of so many rounds


@cache
def bands_of(count: int) -> tuple[int, ...]:
    """c_0, c_1, ..., times `GRAIN`."""
    exact = np.cumprod([1.0, *(1 - 0.5 / k for k in range(1, count))])
    return tuple(int(one) for one in np.rint(GRAIN * exact))


class Drawn(NamedTuple):
    """Who may be in which round, as far as it is public."""

    clients: int
    participation: float
    rounds: int
    sampling: Sampling
    correlated: bool = False  # the noise
    again: int = 0  # rounds that are done a second time, with other noise

    @property
    def bands(self) -> int:
        """1: the noise is independent."""
        turn = self.clients // cohort_size(self.clients, self.participation)
        return min(turn, MOST_BANDS) if self.correlated else 1

    @property
    def moved(self) -> float:
        """In turn: how far one client moves C X, in its longest reply. A process that goes on from
        a checkpoint with other noise begins a C of its own: columns are cut, and visits added."""
        columns = np.cumsum(np.square(np.array(bands_of(self.bands)) / GRAIN))
        size = cohort_size(self.clients, self.participation)
        rounds = np.arange(0, self.rounds * size, self.clients) // size  # of the first client
        lengths = columns[np.minimum(self.rounds - rounds, self.bands) - 1]
        return sqrt(lengths.sum() + self.again * columns[-1])

    @property
    def left(self) -> float:
        """How long the noise of all rounds is together, by that of as much independent noise."""
        bands = np.array(bands_of(self.bands)[1:])[::-1] / GRAIN
        single = np.zeros(len(bands) + self.rounds)  # the first column of C^-1, after zeros
        single[len(bands)] = 1.0
        for round in range(1, self.rounds):
            single[len(bands) + round] = -bands @ single[round : round + len(bands)]
        return sqrt(np.square(single.cumsum()).sum() / self.rounds)

    def epsilon(self, noise: float, delta: float) -> float:
        """Against those who see every round's model. `noise`: its deviation on the sum of the
        replies, by the longest of them. Not in turn."""
        events, rounds = dp_accounting(), self.rounds + self.again
        with_noise = events.GaussianDpEvent
        if self.sampling.poisson:
            coins = events.pld.PLDAccountant(value_discretization_interval=INTERVAL)
            one = events.PoissonSampledDpEvent(self.participation, with_noise(noise))
            return float(coins.compose(one, rounds).get_epsilon(delta))
        fixed = events.rdp.RdpAccountant(ORDERS, events.NeighboringRelation.REPLACE_ONE)
        clients = self.sampling.clients(self.clients)
        cohort = min(cohort_size(self.clients, self.participation), clients)
        # Of a cohort that is everybody this is the Gaussian itself.
        one = events.SampledWithoutReplacementDpEvent(clients, cohort, with_noise(noise / 2))
        return float(fixed.compose(one, rounds).get_epsilon(delta))


def dp_accounting() -> Any:
    """The package with the parts that are used here."""
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"privacy.noise: dp-accounting works out what it is worth: {install_command('privacy')}"
        ) from error
    return dp_accounting


def least_noise(
    epsilon_with: Callable[[float], float | None], target: float, least: float
) -> float:
    """The least noise, within a thousandth, with which epsilon stays within the target; infinite if
    there is none. `least`: below which there is no guarantee."""

    def fits(noise: float) -> bool:
        reached = epsilon_with(noise)
        return reached is not None and reached <= target

    low = high = least
    while not fits(high):
        low, high = high, 2 * high
        if high > NOISIEST:
            return float("inf")
    while high > low * 1.001:
        middle = sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
