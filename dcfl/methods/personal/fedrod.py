"""FedRoD: a shared model for all mixes of classes, and for each client a classifier for its own.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification",
ICLR 2022. With the outputs o of the shared model, n_c images of class c at the client:

    L(w) = L_CE(o + log n)        balanced softmax
    L(v) = L_CE(o + v(z))         moves the client's second classifier v alone

The client's own model has the sum of both classifiers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.client import Batch, Client, without_statistics
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method, Objective
from dcfl.methods.zoo.fedlc import class_counts
from dcfl.tensors import load, snapshot

PART = "classifier"


@dataclass(frozen=True)
class FedRoD(Method):
    """A shared model for all mixes of classes, and for each client a classifier for its own."""

    equation: ClassVar = "L(w) = L_CE(o + log n),  L(v) = L_CE(o + v(z))"
    cost: ClassVar = Cost(forwards=2, backwards=2, copies=1, kept="weights + 4 * classes * (d + 1)")
    neutral: ClassVar = None

    def objective(self, client: Client) -> Objective:
        counts = class_counts(client)

        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            # Classes without images: minus infinity, which a softmax takes.
            return F.cross_entropy(logits + counts.to(logits.dtype).log(), batch.labels)

        return loss

    def own_objective(self, client: Client) -> Objective:
        second = getattr(client.own_model, PART, None)
        if not isinstance(second, nn.Linear) or not second.weight.requires_grad:
            raise ConfigError("fedrod needs a trained linear layer `classifier`")
        zeros = {name: torch.zeros_like(live) for name, live in second.named_parameters()}
        load(second, client.memory or zeros)  # client.own has the sum

        def loss(batch: Batch) -> Tensor:
            with torch.no_grad(), without_statistics(client.model):
                shared = client.model(batch.images)
            return F.cross_entropy(shared.logits + second(shared.embedding), batch.labels)

        return loss

    def own_weights(self, client: Client) -> Tensors:
        own = snapshot(client.model, client.received)
        for name, tensor in self.remember(client).items():
            own[f"{PART}.{name}"] += tensor
        return own

    def remember(self, client: Client) -> Tensors:
        return snapshot(client.own_model.get_submodule(PART))
