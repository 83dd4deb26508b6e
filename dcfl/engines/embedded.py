"""All clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from dcfl.client import frozen
from dcfl.engines.engine import Remarks
from dcfl.engines.memories import Memories
from dcfl.engines.runner import ClientRunner
from dcfl.errors import ClientFailure
from dcfl.evaluation import Evaluation, evaluate
from dcfl.messages import Broadcast, ClientUpdate, Tensors


@dataclass
class Embedded:
    """An Engine."""

    runner: ClientRunner
    memories: Memories

    overlaps = False
    dropped = 0
    own_accuracies = None

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for client in cohort:
            reply, memory = self.runner.train(broadcast, client, self.memories[client])
            if memory:
                on_cpu = {name: tensor.cpu() for name, tensor in memory.items()}
                self.memories.stage(client, broadcast.round, on_cpu)
            yield reply

    def take_remarks(self) -> Remarks:
        return Remarks()

    def settle(self, accepted: Collection[int]) -> None:
        self.memories.settle(accepted)

    def begin_evaluation(self, weights: Tensors) -> None:
        self._evaluated = weights

    def end_evaluation(self) -> Evaluation:
        return evaluate(frozen(self.runner.model, self._evaluated), self.runner.data.dataset)
