"""Two methods compared seed by seed: the difference, how sure it is, and who won."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dcfl.runs.groups import Spread


@dataclass(frozen=True)
class Paired:
    """One method minus another, for each seed that both have. The tests are Student's, which take
    the differences for normally distributed."""

    differences: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        return Spread.of(self.differences)

    @property
    def wins(self) -> int:
        return sum(difference > 0 for difference in self.differences)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """That contains the true mean with a probability of 95 %; None for a single seed."""
        if self.spread.deviation is None:
            return None
        from scipy.stats import t  # type: ignore[import-untyped]  # a third of a second

        count, mean = self.spread.count, self.spread.mean
        half = float(t.ppf(0.975, count - 1)) * self.spread.deviation / math.sqrt(count)
        return mean - half, mean + half

    @cached_property
    def p_value(self) -> float | None:
        """How likely so large a difference would be if there were none; None for a single seed."""
        count, mean, deviation = self.spread.count, self.spread.mean, self.spread.deviation
        if deviation is None:
            return None
        if deviation == 0:
            return 1.0 if mean == 0 else 0.0
        from scipy.stats import t

        return 2 * float(t.sf(abs(mean) / (deviation / math.sqrt(count)), count - 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Corrected for the number of comparisons (Holm, 1979): below 0.05, none of those found is by
    chance with a probability of 95 %."""
    corrected: dict[str, float] = {}
    reached = 0.0
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_value))
        corrected[name] = reached
    return {name: corrected[name] for name in p_values}
