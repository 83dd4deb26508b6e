"""FedCM: every step mixed with the direction in which all clients went in the last round.

Xu et al., "FedCM: Federated Learning with Client-level Momentum", 2021. With the K steps that this
client takes in a round and the learning rate of the last one:

    step with  alpha * grad L_CE + (1 - alpha) * Delta
    Delta = (w_received before - w_received) / (lr * K)        0 in the first round

Delta is the gradient of <Delta, w>, which is added to the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.client import Batch, Client
from dcfl.methods.method import Cost, Method, Objective, ServerStep
from dcfl.settings import key


@dataclass(frozen=True)
class FedCM(Method):
    """Every step mixed with the direction in which all clients went in the last round."""

    alpha: float = key(0.1, gt=0, le=1)  # weight of the client's own gradient; 1 is FedAvg

    equation: ClassVar = (
        "L = alpha * L_CE + (1 - alpha) * <Delta, w>,"
        "  Delta = (w_received before - w_received) / (lr K)"
    )
    cost: ClassVar = Cost(down="parameters")
    neutral: ClassVar = {"alpha": 1.0}

    def objective(self, client: Client) -> Objective:
        cross_entropy = super().objective(client)
        training = client.training
        reach = training.lr_in(max(1, client.round - 1)) * training.effective_steps(
            training.steps_on(len(client.data))
        )
        pairs = [
            (live, client.shared[name] / reach)
            for name, live in client.federated()
            if name in client.shared and reach
        ]

        def loss(batch: Batch) -> Tensor:
            own = self.alpha * cross_entropy(batch)
            inner = [(live * delta).sum() for live, delta in pairs]
            return own + (1 - self.alpha) * torch.stack(inner).sum() if inner else own

        return loss

    def server_step(self, step: ServerStep) -> ServerStep:
        backwards = {name: -change for name, change in step.direction.items()}
        return replace(step, shared=named.cast_like(backwards, step.weights))
