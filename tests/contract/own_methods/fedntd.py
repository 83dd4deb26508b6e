"""FedNTD (Lee et al., NeurIPS 2022), as a user would write it: the received model's opinion on the
classes that an image is not, L = L_CE + beta KL( received || local, without class y_i )."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective


def others(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities [B, classes - 1] of the classes that are not the true one."""
    rest = ~F.one_hot(labels, logits.shape[1]).bool()
    return logits[rest].view(len(labels), -1).log_softmax(dim=1)


@dataclass(frozen=True)
class MyFedNTD(dcfl.Method):
    beta: float = 1.0

    neutral: ClassVar = {"beta": 0.0}

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            with torch.no_grad():
                before = client.global_model(batch.images).logits
            own, received = others(logits, batch.labels), others(before, batch.labels)
            distance = F.kl_div(own, received, reduction="batchmean", log_target=True)
            return F.cross_entropy(logits, batch.labels) + self.beta * distance

        return loss
