"""FedNTD: what the received model says about the classes that an image is not.

Lee et al., "Preservation of the Global Knowledge by Not-True Distillation in Federated Learning",
NeurIPS 2022.

    L = L_CE + mu * tau^2 * mean_i KL( q(x_i) || p(x_i) )

q and p are the predictions of the received and the local model at temperature tau, renormalised
over all classes but the true one. So a client learns its own classes from its labels, and keeps
what everybody knew about the others. mu is the paper's beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, observe
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class FedNTD(Method):
    """Distillation of what the received model says about the classes that an image is not."""

    mu: float = key(1.0, ge=0)  # weight of the distillation; the paper's beta
    temperature: float = key(1.0, gt=0)  # of the distillation

    equation: ClassVar = "L = L_CE + mu * tau^2 * mean_i KL( received || local, without class y_i )"
    cost: ClassVar = Cost(forwards=2, copies=1)
    neutral: ClassVar = {"mu": 0.0}

    def objective(self, client: Client) -> Objective:
        teacher = client.global_model

        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            distance = self._not_true_distance(
                observe(teacher, batch.images).logits, logits, batch.labels
            )
            return F.cross_entropy(logits, batch.labels) + self.mu * distance

        return loss

    def _not_true_distance(self, received: Tensor, local: Tensor, labels: Tensor) -> Tensor:
        true = F.one_hot(labels, local.shape[1]).bool()
        target = (received / self.temperature).masked_fill(true, -torch.inf).softmax(dim=1)
        log_p = (local / self.temperature).masked_fill(true, -torch.inf).log_softmax(dim=1)
        # The true class has log p = -inf and q = 0, whose product is 0 in the limit.
        log_p = log_p.masked_fill(true, 0.0)
        return self.temperature**2 * F.kl_div(log_p, target, reduction="batchmean")
