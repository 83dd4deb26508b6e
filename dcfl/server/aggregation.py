"""How much each client counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dcfl.messages import ClientUpdate

Aggregation = Literal["uniform", "samples"]

SHARES: dict[Aggregation, Callable[[ClientUpdate], float]] = {
    "uniform": lambda update: 1.0,  # Algorithm 1: the plain mean
    "samples": lambda update: float(update.num_examples),  # Eq. 1, over the sampled clients
}
