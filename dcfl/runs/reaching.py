"""What it took a run to reach an accuracy: rounds, bytes, and the clients' work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from dcfl.runs.folder import RecordedRun


def bytes_so_far(run: RecordedRun) -> list[float]:
    """Bytes up and down since the beginning, after each round."""
    return list(accumulate(float(row.bytes_up + row.bytes_down) for row in run.rounds))


def client_seconds_so_far(run: RecordedRun) -> list[float]:
    """Seconds that clients have trained since the beginning, all together, after each round."""
    by_round = {row.round: 0.0 for row in run.rounds}
    for row in run.clients:
        by_round[row.round] = by_round.get(row.round, 0.0) + row.seconds
    return list(accumulate(by_round[row.round] for row in run.rounds))


@dataclass(frozen=True)
class Cost:
    """Of training up to some round."""

    rounds: float
    bytes: float  # up and down
    client_seconds: float


def cost_to_reach(run: RecordedRun, target: float, quantity: str = "ema_accuracy") -> Cost | None:
    """Up to the first scored round in which the quantity reaches the target; None if none does.

    The moving average, because a single lucky round is not an accuracy reached.
    """
    for index, row in enumerate(run.rounds):
        value = row[quantity]
        if row.accuracy is not None and value is not None and value >= target:
            sent, worked = bytes_so_far(run)[index], client_seconds_so_far(run)[index]
            return Cost(row.round, sent, worked)
    return None


@dataclass(frozen=True)
class Reached:
    """The costs of one method's runs; None for a run that did not reach the target."""

    costs: Sequence[Cost | None]

    @property
    def count(self) -> int:
        return sum(cost is not None for cost in self.costs)

    @property
    def mean(self) -> Cost | None:
        """Over the runs that reached it."""
        known = [cost for cost in self.costs if cost is not None]
        if not known:
            return None
        return Cost(
            fmean(cost.rounds for cost in known),
            fmean(cost.bytes for cost in known),
            fmean(cost.client_seconds for cost in known),
        )
