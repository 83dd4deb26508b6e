"""FedSCL: supervised contrastive learning as a local regulariser.

Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, used in federated learning as in Seo
et al., CVPR 2024. Eq. 3, per anchor i:

    l_i = -mean_{p in P_i} log( exp(sim(z_i, z_p)/tau) / sum_{k != i} exp(sim(z_i, z_k)/tau) )
    L = L_CE + mu * mean_i l_i

Here the denominator contains the positives too; DCFL separates the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.losses import cosine_similarity, supervised_contrastive
from dcfl.methods.method import Objective, OnLevels
from dcfl.settings import key


@dataclass(frozen=True)
class FedSCL(OnLevels):
    """Supervised contrastive learning as a local regulariser."""

    mu: float = key(1.0, ge=0)  # weight of the contrastive term
    temperature: float = key(0.5, gt=0)  # tau: the smaller, the more the nearest images count
    reduction: Literal["mean", "sum"] = "mean"  # over the positives; "sum" is Eq. 3 as printed

    equation: ClassVar = (
        "L = L_CE + mu * mean_i -mean_{p in P_i} log( exp(sim(z_i, z_p)/tau)"
        " / sum_{k != i} exp(sim(z_i, z_k)/tau) )"
    )
    neutral: ClassVar = {"mu": 0.0}

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            others = ~torch.eye(len(batch.labels), dtype=torch.bool, device=batch.labels.device)
            same = batch.labels[:, None] == batch.labels[None, :]

            def term(z: Tensor) -> Tensor:
                similarity = cosine_similarity(z, z)
                how = (self.temperature, self.reduction)
                return supervised_contrastive(similarity, same & others, others, *how)

            contrast = self.over_levels(output, term)
            return F.cross_entropy(output.logits, batch.labels) + self.mu * contrast

        return loss
