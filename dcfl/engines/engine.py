"""What runs a federation on this machine: clients, and the evaluation of what they made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from dcfl.engines.memories import Index
from dcfl.engines.placement import Placement
from dcfl.engines.runner import ClientRunner
from dcfl.evaluation import Evaluation
from dcfl.experiment import Experiment
from dcfl.federation import Backend
from dcfl.messages import Tensors


class Keeper(Protocol):
    """Of what clients keep between their rounds: which of it a checkpoint needs."""

    def save(self) -> Index:
        """Begin to put everything of now where it outlives this process; what it is."""

    def saved(self) -> None:
        """Wait for that."""

    def keep_only(self, indexes: Collection[Index]) -> None:
        """From now on checkpoints need these alone."""


class Engine(Backend, Protocol):
    @property
    def memories(self) -> Keeper: ...

    @property
    def overlaps(self) -> bool:
        """Whether an evaluation that has begun goes on while the next round runs."""

    @property
    def dropped(self) -> int:
        """Replies so far that came after their round's deadline."""

    @property
    def own_accuracies(self) -> Tensor | None:
        """By the last evaluation, of each client on test images of its own, if it has some."""

    def remarks(self) -> dict[str, Any]:
        """What else there is to say in the row of the round that was evaluated last."""

    def begin_evaluation(self, weights: Tensors) -> None: ...

    def end_evaluation(self) -> Evaluation:
        """Of the weights that the last evaluation began with."""


@dataclass(frozen=True)
class Session:
    """What an engine is made from."""

    run: str  # what nodes elsewhere know the run by
    experiment: Experiment
    runner: ClientRunner
    placement: Placement
    memories: Path  # a folder of the run's own, for what clients keep
    index: Index = field(default_factory=dict)  # of what they have kept already
    needed: Sequence[Index] = ()  # by checkpoints

    @property
    def resumable(self) -> bool:
        return self.experiment.output.checkpoint != 0


Connect = Callable[[Session], AbstractContextManager[Engine]]
