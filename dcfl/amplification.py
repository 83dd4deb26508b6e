"""What noise at the server is worth when clients are drawn at random, by dp-accounting.

Whoever is protected against sees the models and not the cohorts: a client is hidden by the noise
and by the chance that it was not there. There are two ways of drawing:

    coins    a client is there or not, which is one clip; by privacy loss distributions (PLD), tight
             but for their rounding, which errs on the high side
    fixed    a client's images are others, which is two clips; by Renyi divergences (RDP; Wang,
             Balle and Kasiviswanathan 2019), an upper bound that is far from tight
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

from dcfl.errors import ConfigError
from dcfl.federation import Sampling, cohort_size
from dcfl.system.wording import install_command

INTERVAL = 1e-3  # between the privacy losses that are told apart; they are rounded up to it
# Renyi orders, of which the best counts: a third of dp-accounting's own, in a quarter of the time.
ORDERS = (*(1 + step / 4 for step in range(1, 12)), *range(4, 24), 28, 32, 48, 64, 128, 256)
NOISIEST = 1e6  # where a search for noise gives up


class Drawn(NamedTuple):
    """Who may be in which round, as far as it is public."""

    clients: int
    participation: float
    rounds: int
    sampling: Sampling

    def epsilon(self, noise: float, delta: float) -> float:
        """Against those who see every round's model. `noise`: its deviation on the sum of the
        replies, by the longest of them."""
        events = dp_accounting()
        with_noise = events.GaussianDpEvent
        if self.sampling.poisson:
            coins = events.pld.PLDAccountant(value_discretization_interval=INTERVAL)
            one = events.PoissonSampledDpEvent(self.participation, with_noise(noise))
            return float(coins.compose(one, self.rounds).get_epsilon(delta))
        fixed = events.rdp.RdpAccountant(ORDERS, events.NeighboringRelation.REPLACE_ONE)
        clients = self.sampling.clients(self.clients)
        cohort = min(cohort_size(self.clients, self.participation), clients)
        # Of a cohort that is everybody this is the Gaussian itself.
        one = events.SampledWithoutReplacementDpEvent(clients, cohort, with_noise(noise / 2))
        return float(fixed.compose(one, self.rounds).get_epsilon(delta))


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
