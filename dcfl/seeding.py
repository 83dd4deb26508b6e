"""Random numbers come from (seed, round, client, purpose).

Nothing depends on what ran before in the same process, so a client's round has the same bits
wherever and whenever it runs, and one purpose cannot disturb another (a method that draws a second
view leaves the order of the batches alone). Two draws come from numpy instead: the split, from its
seed, and the schedule, from (seed, round).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import torch

# Of round 0 are those that have no round.
Purpose = Literal[
    "initialisation",
    "holdout",
    "order",
    "augmentation",
    "second view",
    "model",
    "faults",
    "attackers",
    "attack",
]


def derived_seed(seed: int, round: int, client: int, purpose: Purpose) -> int:
    """63 well-mixed bits, the same in every process and on every platform."""
    key = f"{seed}/{round}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def generator_for(seed: int, round: int, client: int, purpose: Purpose) -> torch.Generator:
    """A generator on the CPU: its draws are the same whatever device the client trains on."""
    return torch.Generator().manual_seed(derived_seed(seed, round, client, purpose))
