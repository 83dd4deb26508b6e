"""FedDyn: each client's loss is bent until the clients' minima are the minimum of all.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021. h_i is what client i
has drifted in all its visits, H the mean of h_i over all clients:

    L   = L_CE + alpha * ( <h_i, w> + 1/2 ||w - w_received||^2 )
    h_i <- h_i + w - w_received
    H   <- H + sum over the round's clients of (w_i - w_received) / number of all clients
    w   <- mean over the round's clients of w_i + H

-alpha h_i is the paper's gradient of the client, so that no client needs to send it: the server
knows H from the weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method, Objective, ServerStep
from dcfl.settings import key


@dataclass(frozen=True)
class FedDyn(Method):
    """Each client's loss is bent until the clients' minima are the minimum of all."""

    alpha: float = key(0.01, gt=0)  # strength of the regularisation

    equation: ClassVar = "L = L_CE + alpha * (<h_i, w> + 1/2 ||w - w_received||^2),  w <- mean + H"
    cost: ClassVar = Cost(kept="parameters")
    neutral: ClassVar = None  # H moves the server whatever alpha is
    searched: ClassVar = ("alpha",)
    any_optimizer: ClassVar = False
    any_aggregation: ClassVar = False

    def objective(self, client: Client) -> Objective:
        cross_entropy, drift = super().objective(client), client.memory
        pairs = [(name, live, client.received[name]) for name, live in client.federated()]

        def loss(batch: Batch) -> Tensor:
            squares = [(live - received).square().sum() / 2 for _, live, received in pairs]
            lines = [(drift[name] * live).sum() for name, live, _ in pairs if drift]
            return cross_entropy(batch) + self.alpha * torch.stack(squares + lines).sum()

        return loss

    def remember(self, client: Client) -> Tensors:
        return {
            name: client.memory.get(name, 0.0) + live.detach() - client.received[name]
            for name, live in client.federated()
        }

    def server_step(self, step: ServerStep) -> ServerStep:
        share = step.clients / step.population
        drift = {name: step.kept.get(name, 0.0) + share * d for name, d in step.direction.items()}
        moved = {name: d + drift[name] for name, d in step.direction.items()}
        return replace(step, direction=moved, kept=drift)
