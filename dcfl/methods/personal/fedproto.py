"""FedProto: clients exchange the mean embedding of each class, and keep their models.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. With
the prototypes c_g, means over clients of their mean embeddings of class g in the last epoch:

    L = L_CE + mu * mean (z_i - c_{y_i})^2         over images and the numbers of an embedding

A class that nobody has seen adds nothing. Each client goes on from its own model. The server's
weights are the mean of these models, which nobody begins with but a client in its first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Objective
from dcfl.methods.prototypes import PrototypeMethod
from dcfl.settings import key


@dataclass(frozen=True)
class FedProto(PrototypeMethod):
    """Clients exchange the mean embedding of each class, and keep their models."""

    mu: float = key(1.0, ge=0)  # how near to the prototypes; the paper's lambda
    prototype_model: Literal["trained", "received", "running"] = "running"
    prototype_weights: Literal["counts", "uniform"] = "uniform"

    equation: ClassVar = "L = L_CE + mu * mean (z_i - c_{y_i})^2"
    cost: ClassVar = Cost(
        up="4 * classes * d + 8 * classes", down="4 * classes * d + classes", kept="weights"
    )
    neutral: ClassVar = None
    keeps_model: ClassVar = True
    searched: ClassVar = ("mu",)
    any_optimizer: ClassVar = False  # which would move weights that nobody goes on from

    def start(self, client: Client) -> Tensors:
        return client.own

    def objective(self, client: Client) -> Objective:
        prototypes, last = self._received(client), client.training.all_epochs - 1

        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            z = self.embedding_of(output)
            if self.prototype_model == "running" and batch.epoch == last:
                self._count(client, [z], batch.labels)
            cross_entropy = F.cross_entropy(output.logits, batch.labels)
            if prototypes is None:
                return cross_entropy
            known = prototypes.known[batch.labels][:, None]
            far = (z - prototypes.vectors[batch.labels].to(z.dtype)).where(known, 0.0)
            return cross_entropy + self.mu * far.square().mean()

        return loss

    def upload(self, client: Client) -> Tensors:
        if self.prototype_model == "running" and "counts" not in client.tally:  # no step was taken
            self._count_all(client, client.model)
        return super().upload(client)
