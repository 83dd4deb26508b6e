"""SCAFFOLD: every step corrected by how this client's direction differs from everybody's.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
option II. Per step, and after K steps:

    w   <- w - lr * (g - c_i + c)
    c_i <- c_i - c + (w_received - w) / (lr * K)        K: effective steps, if there is momentum
    c   <- c + the changes of c_i summed over the round's clients / number of all clients

c - c_i is constant during a round, so it is the gradient of <c - c_i, w>, which is added to the
loss and thus to the reported training loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.client import Batch, Client
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, MeanUpload, Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class Scaffold(Method):
    """Every step corrected by how this client's direction differs from everybody's."""

    correction: float = key(1.0, ge=0)  # factor on the correction c - c_i; 0 is FedAvg

    equation: ClassVar = "w <- w - lr * (g - c_i + c),  c_i <- c_i - c + (w_received - w) / (lr K)"
    cost: ClassVar = Cost(up="parameters", down="parameters", kept="parameters")
    neutral: ClassVar = {"correction": 0.0}

    def objective(self, client: Client) -> Objective:
        cross_entropy = super().objective(client)
        if not client.shared:
            return cross_entropy  # all variates are still zero
        variate = client.memory or named.zeros_like(client.shared)
        drift = named.subtract(client.shared, variate)
        pairs = [(live, drift[name]) for name, live in client.federated()]

        def loss(batch: Batch) -> Tensor:
            inner = torch.stack([(live * offset).sum() for live, offset in pairs]).sum()
            return cross_entropy(batch) + self.correction * inner

        return loss

    def upload(self, client: Client) -> Tensors:
        """The change of this client's control variate."""
        new = self.remember(client)
        return named.subtract(new, client.memory) if client.memory else new

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {name: live for name, live in parameters.items() if live.requires_grad}

    def remember(self, client: Client) -> Tensors:
        """This client's new control variate: its mean gradient without the correction."""
        step = client.training.lr_in(client.round)
        step *= client.training.effective_steps(client.num_steps)
        new: dict[str, Tensor] = {}
        for name, live in client.federated():
            moved = (
                (client.received[name] - live.detach()) / step if step else torch.zeros_like(live)
            )
            variate = client.memory.get(name, torch.zeros_like(live))
            shared = client.shared.get(name, torch.zeros_like(live))
            new[name] = moved - self.correction * (shared - variate)
        return new

    def merge_mean(self, shared: Tensors, uploads: MeanUpload, population: int) -> Tensors:
        means = uploads.tensors.items()
        change = {name: mean * uploads.clients / population for name, mean in means}
        return uploads.cast(named.add(shared or named.zeros_like(change), change))
