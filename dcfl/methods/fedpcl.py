"""FedPCL: every embedding near its class's prototypes, the global one and each client's own.

Tan et al., "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach", NeurIPS
2022. With c^0 the global prototypes and c^1 ... c^m those of the last round's m clients:

    l_i(c) = -log( exp(sim(z_i, c_{y_i})/tau) / sum_{g != y_i} exp(sim(z_i, c_g)/tau) )
    L = L_CE + mu * mean_i( l_i(c^0) + 1/m * sum_p l_i(c^p) )

A class that client p does not hold has the global prototype in c^p. It is meant for feature vectors
of one or several fixed backbones. In the paper clients share prototypes alone and classify by them;
here the projection and a classifier are trained and averaged too, as for every other method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.losses import cosine_similarity, decoupled_contrastive
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Objective
from dcfl.methods.prototypes import PrototypeMethod, Prototypes
from dcfl.settings import key


@dataclass(frozen=True)
class FedPCL(PrototypeMethod):
    """Every embedding near its class's prototypes, the global one and each client's own."""

    mu: float = key(0.1, ge=0)  # weight of the contrastive term
    temperature: float = key(0.07, gt=0)  # tau: the smaller, the more the nearest prototypes count

    equation: ClassVar = (
        "L = L_CE + mu * mean_i( l_i(c^0) + mean_p l_i(c^p) ),"
        "  l_i(c) = -log( exp(sim(z_i, c_{y_i})/tau) / sum_{g != y_i} exp(sim(z_i, c_g)/tau) )"
    )
    cost: ClassVar = Cost(
        passes=1,
        up="4 * classes * d + 8 * classes",
        down="(1 + cohort) * (4 * classes * d + classes)",
    )
    neutral: ClassVar = {"mu": 0.0}

    def objective(self, client: Client) -> Objective:
        if not client.shared:
            return super().objective(client)
        sets = _sets(client.shared)

        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            z = self.embedding_of(output)
            if self.prototype_model == "running":
                self._count(client, [z], batch.labels)
            terms = [self._contrast(z, batch.labels, one) for one in sets]
            contrast = terms[0] + torch.stack(terms[1:]).mean()
            return F.cross_entropy(output.logits, batch.labels) + self.mu * contrast

        return loss

    def _contrast(self, z: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
        """The mean of l_i over the batch; an anchor whose class is unknown gives 0."""
        same, others = prototypes.masks(labels)
        similarity = cosine_similarity(z, prototypes.vectors)
        # With both weights 1 this is l_i.
        return decoupled_contrastive(similarity, same, others, self.temperature, 1.0, 1.0)

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        if not uploads:
            return shared
        sums = torch.stack([upload["sums"].double() for upload in uploads])  # [m, K, d]
        counts = torch.stack([upload["counts"].double() for upload in uploads])  # [m, K]
        return {
            **super().merge(shared, uploads, population),
            "local": (sums / counts.clamp(min=1)[:, :, None]).float(),
            "held": counts > 0,
        }


def _sets(shared: Tensors) -> list[Prototypes]:
    """The global prototypes, then each client's, completed by the global ones."""
    everybody = Prototypes(shared["prototypes"].detach(), shared["known"])
    return [
        everybody,
        *(
            Prototypes(own.where(held[:, None], everybody.vectors), held | everybody.known)
            for own, held in zip(shared["local"].detach(), shared["held"], strict=True)
        ),
    ]
