"""Clients that fail on purpose, for experiments on robustness: the [faults] table."""

from __future__ import annotations

import os
import time

import numpy as np

from dcfl.experiment import FaultSettings
from dcfl.seeding import derived_seed


def strike(faults: FaultSettings, seed: int, round: int, client: int) -> None:
    """Fail if it is this client's turn, which is a function of (seed, round, client)."""
    if not (faults.crash or faults.memory or faults.lethal):
        return
    draw = np.random.default_rng(derived_seed(seed, round, client, "faults")).random()
    if draw < faults.crash:
        raise RuntimeError("an injected fault")
    if draw < faults.crash + faults.memory:
        raise MemoryError("an injected lack of memory")
    if draw < faults.crash + faults.memory + faults.exit:
        os._exit(17)
    while draw < faults.crash + faults.memory + faults.exit + faults.hang:
        time.sleep(60)
