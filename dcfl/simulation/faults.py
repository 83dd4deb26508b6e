"""Clients that fail on purpose, for experiments on robustness: the [faults] table."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from dcfl.errors import require
from dcfl.seeding import derived_seed


@dataclass(frozen=True)
class FaultSettings:
    """Each a share of the clients of a round, which do it instead of training."""

    crash: float = 0.0  # raise an exception
    memory: float = 0.0  # run out of memory
    exit: float = 0.0  # end their process
    hang: float = 0.0  # never answer; needs federation.deadline

    def __post_init__(self) -> None:
        rates = (self.crash, self.memory, self.exit, self.hang)
        require(
            all(0 <= rate <= 1 for rate in rates) and sum(rates) <= 1,
            "faults: each share must lie in 0 to 1, and all together too",
        )

    @property
    def lethal(self) -> bool:
        """To the process that they happen in."""
        return bool(self.exit or self.hang)

    def strike(self, seed: int, round: int, client: int) -> None:
        """Fail, if it is this client's turn; a function of (seed, round, client)."""
        if not (self.crash or self.memory or self.lethal):
            return
        draw = np.random.default_rng(derived_seed(seed, round, client, "faults")).random()
        if draw < self.crash:
            raise RuntimeError("an injected fault")
        if draw < self.crash + self.memory:
            raise MemoryError("an injected lack of memory")
        if draw < self.crash + self.memory + self.exit:
            os._exit(17)
        while draw < self.crash + self.memory + self.exit + self.hang:
            time.sleep(60)
