"""Ditto (Li et al., ICML 2021), as a user would write it: FedAvg, and beside it a model v of every
client's own, L = L_CE(v) + lambda/2 |v - w_received|^2."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective


@dataclass(frozen=True)
class MyDitto(dcfl.Method):
    lam: float = 0.1

    neutral: ClassVar = None

    def own_objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            cross_entropy = F.cross_entropy(client.own_model(batch.images).logits, batch.labels)
            far = sum(
                (live - client.received[name]).square().sum()
                for name, live in client.own_model.named_parameters()
                if live.requires_grad
            )
            return cross_entropy + self.lam / 2 * far

        return loss
