"""The protocol of everything that can train the clients of a run and evaluate their model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor

from dcfl.engines.memories import Index
from dcfl.engines.placement import Placement
from dcfl.engines.runner import ClientRunner
from dcfl.evaluation import Evaluation
from dcfl.experiment import Experiment
from dcfl.federation import Backend
from dcfl.messages import Tensors
from dcfl.scores import Scores
from dcfl.server import ClientReport
from dcfl.system.json_types import Count, Percent, Share


class CheckpointedMemories(Protocol):
    """What clients keep between their rounds, as far as checkpoints are concerned."""

    def save(self) -> Index:
        """Begin to make the present memories outlive this process; returns which they are."""

    def saved(self) -> None:
        """Wait until everything of the last `save` does."""

    def keep_only(self, indexes: Collection[Index]) -> None:
        """Tell which memories checkpoints still need."""


@dataclass(frozen=True)
class SiteScore:
    """How well the global model does on one site's own test images."""

    client: Count
    accuracy: Percent
    images: Count
    weight: Share  # of each of its images in the mean


@dataclass(frozen=True)
class OwnScores:
    """A model on the test images of one site, which nobody else has."""

    name: str  # of the site
    scores: Scores
    weight: float  # of each of its images in the sum over the sites
    withheld: tuple[str, ...] = ()  # what it keeps to itself; its scores are then of no image


class SiteScoring(Protocol):
    """What sites with test images that nobody else has find out about a model."""

    @property
    def own_accuracies(self) -> Tensor:
        """The last evaluation's accuracy of each client on its own test images: [clients], percent;
        NaN where there is none."""

    def site_scores(self) -> tuple[SiteScore, ...]:
        """The score of each site in the last evaluation."""

    @property
    def absent(self) -> tuple[int, ...]:
        """The clients without which the last evaluation has no result."""

    def own_scores(self, weights: Tensors) -> Sequence[OwnScores]:
        """All scores of a model."""

    def personal_accuracies(self, weights: Tensors) -> Mapping[tuple[int, int], float]:
        """The accuracy of one client's own model (these weights with its personal part) on the test
        images of another or of its own, in percent, as far as the clients allow it."""

    def kept_back(self, client: int) -> tuple[str, ...]:
        """What the client keeps from the others' models and images: its `personal` part, its
        `scores`."""


class Engine(Backend, Protocol):
    """Where clients train: in this process, in a pool of workers, at Flower's nodes."""

    @property
    def memories(self) -> CheckpointedMemories: ...

    @property
    def overlaps(self) -> bool:
        """Whether an evaluation runs while the next round trains."""

    @property
    def dropped(self) -> int:
        """The number of replies so far that came after their round's deadline."""

    @property
    def sites(self) -> SiteScoring | None:
        """Who scores models on test images that are not here; None where all of them are here."""

    def asks_again(self, clients: Sequence[ClientReport]) -> bool:
        """Whether a round that did not change the model is done once more; waits until that may
        help. `clients`: those of that round."""

    def take_notices(self) -> tuple[str, ...]:
        """What the operator should know, and has not been told."""

    def begin_evaluation(self, weights: Tensors) -> None: ...

    def end_evaluation(self) -> Evaluation | None:
        """Wait for the result of the last `begin_evaluation`; None if sites whose images belong to
        it have not scored them."""

    def personal_parts(self) -> Iterator[tuple[int, Tensors]]:
        """The personal part of the model of each client that has trained, in client order; nothing
        where clients are elsewhere and keep it to themselves."""


@dataclass(frozen=True)
class Session:
    run: str  # the run's id, by which nodes elsewhere know it
    experiment: Experiment
    runner: ClientRunner
    placement: Placement
    memories: Path  # a folder of this run for what clients keep
    index: Index = field(default_factory=dict)  # the memories to continue from
    needed: Sequence[Index] = ()  # the memories of each checkpoint
    judges: Sequence[int] = ()  # the sites whose images make up the accuracy; none: not known yet

    @property
    def resumable(self) -> bool:
        return self.experiment.output.checkpoint != 0


Connect = Callable[[Session], AbstractContextManager[Engine]]
