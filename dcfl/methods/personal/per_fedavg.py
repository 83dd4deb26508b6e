"""Per-FedAvg: a shared model that is good one step of training later.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020; the variant of the first order. B1 and B2 are
the halves of a batch:

    w_ahead = w - alpha * grad L_CE(w; B1)
    w       <- w - lr * grad L_CE(w_ahead; B2)
    the client's own model: w - alpha * grad L_CE(w; all its images)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, evaluating, perturbed, without_statistics
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key
from dcfl.tensors import snapshot


@dataclass(frozen=True)
class PerFedAvg(Method):
    """A shared model that is good one step of training later."""

    alpha: float = key(0.05, gt=0)  # the rate of that step

    name: ClassVar = "per-fedavg"
    equation: ClassVar = "g = grad L_CE(w - alpha grad L_CE(w; B1); B2)"
    cost: ClassVar = Cost(forwards=2, backwards=2, copies=1, tuned=1, kept="weights")
    neutral: ClassVar = None

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        first, second = halves(batch)
        with without_statistics(client.model):
            slopes = self._slopes(client, client.scaler.scale(objective(first)))
        unit = client.scaler.scale(torch.ones((), device=batch.labels.device))
        with perturbed([(live, -self.alpha * slope / unit) for live, slope in slopes]):
            return super().gradient(client, objective, second)

    def own_weights(self, client: Client) -> Tensors:
        own = snapshot(client.model, client.received)
        names = [name for name, _ in client.trainable()]
        with evaluating(client.model):
            for batch in client.data.clean_batches(client.model):
                logits = client.model(batch.images).logits
                share = F.cross_entropy(logits, batch.labels, reduction="sum") / len(client.data)
                for name, (_, slope) in zip(names, self._slopes(client, share), strict=True):
                    own[name] -= self.alpha * slope
        return own

    def _slopes(self, client: Client, loss: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The gradient of each parameter, beside it."""
        lives = [live for _, live in client.trainable()]
        slopes = torch.autograd.grad(loss, lives, allow_unused=True, materialize_grads=True)
        return list(zip(lives, slopes, strict=True))


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """Of fewer than four images, which could not be normalised by the half, all of them twice."""
    half = -(-len(batch.labels) // 2)
    if half < 2 or len(batch.labels) - half < 2:
        return batch, batch
    return tuple(  # type: ignore[return-value]
        Batch(batch.images[part], batch.labels[part], epoch=batch.epoch)
        for part in (slice(half), slice(half, None))
    )
