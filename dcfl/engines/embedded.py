"""All clients in this process, one after the other; and what the engines of this machine share.

They may train on a GPU; the server is on the CPU, as with every engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from dcfl.client import frozen
from dcfl.engines.memories import Memories
from dcfl.engines.runner import ClientRunner
from dcfl.errors import ClientFailure
from dcfl.evaluation import Evaluation, score_model
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import addressed
from dcfl.server import ClientReport
from dcfl.system.transfers import to_host
from dcfl.tensors import apart, together


@dataclass
class OnThisMachine:
    """What an Engine does beside training and evaluating, where no client is elsewhere."""

    runner: ClientRunner
    memories: Memories

    dropped = 0
    sites = None

    def asks_again(self, clients: Sequence[ClientReport]) -> bool:
        return False  # whoever failed would fail again

    def take_notices(self) -> tuple[str, ...]:
        return ()

    def personal_parts(self) -> Iterator[tuple[int, Tensors]]:
        return self.runner.personal_parts(self.memories)

    def settle(self, accepted: Collection[int]) -> None:
        self.memories.settle(accepted)


class Embedded(OnThisMachine):
    overlaps = False

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        broadcast = self.runner.received(broadcast)
        for client in cohort:
            sent = addressed(broadcast, self.runner.method, client)
            reply, memory = self.runner.train(sent, client, self.memories[client])
            if isinstance(reply, ClientUpdate):
                made = to_host(together(weights=reply.weights, upload=reply.upload, memory=memory))
                weights, upload, memory = apart(made, "weights", "upload", "memory")
                reply = replace(reply, weights=weights, upload=upload)
            if memory:
                self.memories.stage(client, broadcast.round, memory)
            yield reply

    def begin_evaluation(self, weights: Tensors) -> None:
        self._evaluated = weights

    def end_evaluation(self) -> Evaluation:
        model = frozen(self.runner.model, self.runner.here(self._evaluated))
        return score_model(model, self.runner.data.dataset)
