"""All clients in this process, one after the other, on one resident model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dcfl.client import LocalTraining
from dcfl.data.client_data import FederatedData
from dcfl.errors import ClientFailure, Diverged
from dcfl.local_training import train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import Method
from dcfl.models.output import FeatureModel


@dataclass
class Embedded:
    """A backend. The model is scratch space that every client in turn trains."""

    method: Method
    model: FeatureModel
    data: FederatedData
    training: LocalTraining
    seed: int
    memories: dict[int, Tensors] = field(default_factory=dict)

    def run(
        self, broadcast: Broadcast, cohort: Sequence[int]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        for client in cohort:
            try:
                update, memory = train_client(
                    self.method,
                    self.model,
                    self.data.client(client),
                    broadcast,
                    self.memories.get(client, {}),
                    self.training,
                    client,
                    self.seed,
                )
            except Diverged as error:
                yield ClientFailure(client, str(error))
                continue
            if memory:
                self.memories[client] = memory
            yield update
