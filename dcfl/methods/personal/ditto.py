"""Ditto: beside the shared model, every client trains one of its own that stays near it.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. w is
FedAvg's. The client's own model v goes on from where its last round left it, on the same batches:

    L(v) = L_CE(v) + (mu / 2) * ||v - w_received||^2

mu is the paper's lambda: at 0 every client trains alone, and a large one makes v the shared model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class Ditto(Method):
    """A model of every client's own, kept near the shared one."""

    mu: float = key(0.1, ge=0)  # how near; the paper's lambda

    equation: ClassVar = "L(w) = L_CE(w),  L(v) = L_CE(v) + mu/2 ||v - w_received||^2"
    cost: ClassVar = Cost(forwards=2, backwards=2, copies=1, kept="weights")
    neutral: ClassVar = None
    searched: ClassVar = ("mu",)

    def own_objective(self, client: Client) -> Objective:
        own = client.own_model
        pairs = [(own.get_parameter(name), client.received[name]) for name, _ in client.trainable()]

        def loss(batch: Batch) -> Tensor:
            cross_entropy = F.cross_entropy(own(batch.images).logits, batch.labels)
            squares = [(live - sent).square().sum() for live, sent in pairs]
            return cross_entropy + self.mu / 2 * torch.stack(squares).sum()

        return loss
