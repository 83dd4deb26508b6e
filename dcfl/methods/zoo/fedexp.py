"""FedExP and FedDisco: what the server makes of the replies; clients train as in FedAvg.

FedExP: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation",
ICLR 2023. The more the changes d_i of the round's S clients disagree, the further the server moves
along their mean:

    w <- w + max(1, mean_i ||d_i||^2 / (2 (||mean_i d_i||^2 + S epsilon))) * mean_i d_i

FedDisco: Ye et al., "FedDisco: Federated Learning with Discrepancy-Aware Collaboration", ICML 2023.
A client whose classes are unevenly distributed counts less. p_i is its usual share in the mean, D_i
the KL divergence of its mix of classes from the uniform one:

    p_i <- max(0, p_i - a * D_i / sum_j D_j + b), at a sum of one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from typing import ClassVar

import torch

from dcfl.client import Client
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Method, ServerStep
from dcfl.methods.zoo.fedlc import class_counts
from dcfl.settings import key


@dataclass(frozen=True)
class FedExP(Method):
    """The more the clients disagree, the further the server moves along their mean."""

    # Keeps the steps finite where the mean vanishes; the larger, the nearer to FedAvg.
    epsilon: float = key(0.001, ge=0)
    decay: float = key(0.998, gt=0, le=1)  # of the learning rate; epsilon falls with its square

    equation: ClassVar = "w <- w + max(1, mean||d_i||^2 / (2||mean d_i||^2 + 2S epsilon)) mean d_i"
    neutral: ClassVar = {"epsilon": 1e30}

    def server_step(self, step: ServerStep) -> ServerStep:
        epsilon = step.clients * self.epsilon * self.decay ** (2 * step.round)
        length = sum(float(change.square().sum()) for change in step.direction.values()) + epsilon
        stretch = max(1.0, step.mean_square / (2 * length)) if length else 1.0
        return replace(
            step, direction={name: stretch * change for name, change in step.direction.items()}
        )


@dataclass(frozen=True)
class FedDisco(Method):
    """Clients whose classes are unevenly distributed count less."""

    a: float = key(0.5, ge=0)  # how much a client's discrepancy takes from its share
    b: float = key(0.1, ge=0)  # what every share gains before negative ones are cut off

    equation: ClassVar = "p_i <- max(0, p_i - a * D_i / sum_j D_j + b)"
    cost: ClassVar = Cost(up="4")
    neutral: ClassVar = {"a": 0.0, "b": 0.0}

    def upload(self, client: Client) -> Tensors:
        """The divergence of its classes from the uniform mix, as a share of the largest one."""
        mix = class_counts(client).double()
        mix = mix / mix.sum()
        divergence = log(len(mix)) + torch.special.xlogy(mix, mix).sum()
        return {"discrepancy": (divergence / log(max(2, len(mix)))).float()}

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {"discrepancy": torch.empty((), device="meta")}

    def weigh(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> Sequence[float]:
        claimed = torch.stack([update.upload["discrepancy"].double() for update in updates])
        discrepancy = claimed.clamp(0, 1)  # whatever a forged reply claims
        usual = torch.tensor(weights, dtype=torch.float64)
        taken = self.a * discrepancy / (discrepancy.sum() or 1.0) - self.b
        shares = (usual - usual.sum() * taken).clamp(min=0)
        return (shares if shares.any() else usual).tolist()
