"""What a rule of aggregation is: a fold over the replies of a round."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from torch import Tensor

from dcfl.messages import ClientUpdate, Tensors

Names = Collection[str]


class Folded(NamedTuple):
    direction: dict[str, Tensor]  # of the parameters, float64
    buffers: dict[str, Tensor]
    rejected: frozenset[int] = frozenset()  # clients whose replies the rule considers forged


class Fold(Protocol):
    def add(self, update: ClientUpdate) -> None: ...

    def finish(self, sent: Tensors) -> Folded:
        """`sent`: the weights that the clients started from. Nothing is added afterwards."""


class Defence(NamedTuple):
    """What the robust rules know; see ServerSettings."""

    byzantine: float = 0.2
    clip_norm: float = 0.0
    population: int = 0  # clients in the federation; 0: those who reply
