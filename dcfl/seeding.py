"""Derives random numbers from (seed, round, client, purpose).

Nothing depends on what ran earlier in the process, so a client's round gives the same bits wherever
and whenever it runs. Purposes are independent: a method that draws a second view does not change
the order of the batches. Two draws use numpy instead: the split, from its seed, and the schedule,
from (seed, round).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import torch

# Draws that belong to no round use round 0.
Purpose = Literal[
    "initialisation",
    "holdout",
    "training sample",
    "test sample",
    "order",
    "augmentation",
    "second view",
    "model",
    "faults",
    "attackers",
    "attack",
    "device",
    "time zone",
    "drop-out",
    "compression",
    "broadcast",
    "shadow",
]


def derived_seed(seed: int, round: int, client: int, purpose: Purpose) -> int:
    """63 well-mixed bits, the same in every process and on every platform."""
    key = f"{seed}/{round}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1


def generator_for(seed: int, round: int, client: int, purpose: Purpose) -> torch.Generator:
    """A CPU generator, so that draws do not depend on the device the client trains on."""
    return torch.Generator().manual_seed(derived_seed(seed, round, client, purpose))
