"""FedProx: a pull back to the weights that were received.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

    L = L_CE + (mu / 2) * ||w - w_received||^2        over the parameters that were sent

It limits how far a client drifts within a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.methods.method import Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class FedProx(Method):
    """A pull back to the weights that were received."""

    mu: float = key(0.01, ge=0)  # weight of the pull back

    equation: ClassVar = "L = L_CE + mu/2 * ||w - w_received||^2"
    neutral: ClassVar = {"mu": 0.0}
    published: ClassVar = {
        "cifar10": {"mu": 0.01},
        "cifar100": {"mu": 0.001},
        "tiny-imagenet": {"mu": 0.001},
    }

    def objective(self, client: Client) -> Objective:
        cross_entropy = super().objective(client)
        pairs = [(live, client.received[name]) for name, live in client.federated()]

        def loss(batch: Batch) -> Tensor:
            squares = [(live - received).square().sum() for live, received in pairs]
            return cross_entropy(batch) + self.mu / 2 * torch.stack(squares).sum()

        return loss
