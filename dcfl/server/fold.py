"""The interface of an aggregation rule: a fold over the replies of a round."""

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
        """`sent`: the weights the clients started from. Do not call `add` afterwards."""


class Defence(NamedTuple):
    """The settings of the robust rules; see ServerSettings."""

    byzantine: float = 0.2
    clip_norm: float = 0.0
    population: int = 0  # clients in the federation; 0: only those that reply
