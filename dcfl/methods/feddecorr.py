"""FedDecorr: keeps the dimensions of the features uncorrelated.

Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated
Learning", ICLR 2023.

    R = (1 / N) * mean_{a != b} C_ab^2,  C = Z^T Z with Z the standardised features
    L = L_CE + mu * R

R is the released code's, to which the published coefficients belong. The paper's, ||K||_F^2 / d^2
with K the correlation matrix, is about N times smaller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.losses import decorrelation
from dcfl.methods.method import Objective, OnEmbeddings
from dcfl.models.output import Embedding
from dcfl.settings import key


@dataclass(frozen=True)
class FedDecorr(OnEmbeddings):
    """Keeps the dimensions of the features uncorrelated."""

    mu: float = key(0.01, ge=0)  # weight of the penalty
    # What the classifier sees, as published, or the output of a side head.
    embedding: Embedding = field(default="features", kw_only=True)

    equation: ClassVar = "L = L_CE + mu * mean_{a != b} C_ab^2 / N,  C = Z^T Z, Z standardised"
    neutral: ClassVar = {"mu": 0.0}
    published: ClassVar = {
        dataset: {"mu": 0.01} for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    }

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            cross_entropy = F.cross_entropy(output.logits, batch.labels)
            return cross_entropy + self.mu * decorrelation(self.embedding_of(output))

        return loss
