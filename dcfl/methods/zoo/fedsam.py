"""FedSAM and FedASAM: the gradient where the loss is worst nearby, to end in flat minima.

Caldarola, Caputo and Ciccone, "Improving Generalization in Federated Learning by Seeking Flat
Minima", ECCV 2022. Per batch, with g the gradient of the loss at w:

    FedSAM    e = rho * g / ||g||
    FedASAM   e = rho * T^2 g / ||T g||,   T = |w| + eta for weights, 1 for biases
    step with the gradient at w + e, taken at w

Models that sit in flat minima lose less by being averaged. FedASAM moves large weights more, so
that scaling a layer up and the next one down changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcfl.client import Batch, Client, perturbed, without_statistics
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class FedSAM(Method):
    """The gradient where the loss is worst nearby, to end in flat minima."""

    rho: float = key(0.1, ge=0)  # length of the perturbation

    equation: ClassVar = "g = grad L_CE(w + e),  e = rho * g_w/||g_w||"
    cost: ClassVar = Cost(forwards=2, backwards=2, copies=1)
    neutral: ClassVar = {"rho": 0.0}

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        named = list(client.trainable())
        loss = objective(batch)  # at the unperturbed weights: only this moves running statistics
        ascent = torch.autograd.grad(
            client.scaler.scale(loss),
            [live for _, live in named],
            allow_unused=True,
            materialize_grads=True,
        )
        scales = [self.scale(name, live.detach()) for name, live in named]
        scaled = [scale * g for scale, g in zip(scales, ascent, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in scaled])) + 1e-16
        offsets = [
            (live, self.rho / norm * scale * g)
            for (_, live), scale, g in zip(named, scales, scaled, strict=True)
        ]
        with perturbed(offsets), without_statistics(client.model):
            super().gradient(client, objective, batch)
        return loss

    def scale(self, name: str, live: Tensor) -> Tensor | float:
        """T, by which the neighbourhood is wider for some parameters."""
        return 1.0


@dataclass(frozen=True)
class FedASAM(FedSAM):
    """As FedSAM, in a neighbourhood that is wider for larger weights."""

    rho: float = key(0.7, ge=0)  # length of the perturbation
    eta: float = key(0.2, ge=0)  # added to the size of a weight

    equation: ClassVar = "g = grad L_CE(w + e),  e = rho * T^2 g_w/||T g_w||,  T = |w| + eta"

    def scale(self, name: str, live: Tensor) -> Tensor | float:
        return live.abs() + self.eta if name.endswith("weight") else 1.0
