"""What runs a federation on this machine: clients, and the evaluation of what they made."""

from __future__ import annotations

from typing import Protocol

from dcfl.evaluation import Evaluation
from dcfl.federation import Backend
from dcfl.messages import Tensors


class Engine(Backend, Protocol):
    @property
    def overlaps(self) -> bool:
        """Whether an evaluation that has begun goes on while the next round runs."""

    def begin_evaluation(self, weights: Tensors) -> None: ...

    def end_evaluation(self) -> Evaluation:
        """Of the weights that the last evaluation began with."""
