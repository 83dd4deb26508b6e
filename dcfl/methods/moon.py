"""MOON: features near the global model's, away from those of the client's previous model.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021.

    l_i = -log( exp(sim(z_i, z_i^global)/tau)
                / (exp(sim(z_i, z_i^global)/tau) + exp(sim(z_i, z_i^previous)/tau)) )
    L = L_CE + mu * mean_i l_i

A client's first round has no previous model, so L = L_CE: a substitute would give no gradient, or
noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, observe
from dcfl.losses import model_contrastive
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Objective, OnEmbeddings
from dcfl.settings import key
from dcfl.tensors import snapshot


@dataclass(frozen=True)
class MOON(OnEmbeddings):
    """Features near the global model's, away from those of the client's previous model."""

    mu: float = key(1.0, ge=0)  # weight of the contrastive term
    # tau: the smaller, the sharper the choice between the two models
    temperature: float = key(0.5, gt=0)

    equation: ClassVar = (
        "L = L_CE + mu * mean_i -log( exp(sim(z_i, z_i^global)/tau)"
        " / (exp(sim(z_i, z_i^global)/tau) + exp(sim(z_i, z_i^previous)/tau)) )"
    )
    cost: ClassVar = Cost(forwards=3, copies=2, kept="weights")
    neutral: ClassVar = {"mu": 0.0}
    published: ClassVar = {
        "cifar10": {"mu": 5.0},
        "cifar100": {"mu": 1.0},
        "tiny-imagenet": {"mu": 1.0},
    }

    def objective(self, client: Client) -> Objective:
        if not client.memory:
            return super().objective(client)
        global_model, previous_model = client.global_model, client.frozen(client.memory)

        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            near = self.embedding_of(observe(global_model, batch.images))
            far = self.embedding_of(observe(previous_model, batch.images))
            contrast = model_contrastive(self.embedding_of(output), near, far, self.temperature)
            return F.cross_entropy(output.logits, batch.labels) + self.mu * contrast

        return loss

    def remember(self, client: Client) -> Tensors:
        return snapshot(client.model, client.received)
