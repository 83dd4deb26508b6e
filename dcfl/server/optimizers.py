"""Server optimisers: how the server moves its weights, given the clients' mean direction.

Pure functions: (weights, direction, slots) -> (weights, slots). `slots` is what an optimiser keeps
between rounds, as part of the server's state. Optimisers see only parameters, in float64, and no
buffers: a step could make a running variance negative.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (FedAdagrad, FedAdam, FedYogi); Hsu et
al., "Measuring the Effects of Non-Identical Data Distribution", 2019 (FedAvgM); Kim et al.,
"Communication-Efficient Federated Learning with Accelerated Client Gradient", CVPR 2024 (FedACG).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.messages import Tensors
from dcfl.settings import Settings, key

Step = tuple[Tensors, Tensors]  # the new weights and slots


@dataclass(frozen=True)
class ServerOptimizer(Settings):
    """FedAvg: move to the clients' mean."""

    table_name: ClassVar = "server"
    name: ClassVar[str] = "fedavg"

    def outgoing(self, weights: Tensors, slots: Tensors) -> Tensors:
        """The weights to send, which the clients start from."""
        return weights

    def step(self, weights: Tensors, direction: Tensors, slots: Tensors) -> Step:
        """w <- w + direction"""
        return named.add(weights, direction), slots


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """Momentum on the server."""

    momentum: float = key(0.9, ge=0, lt=1)  # share of the last step that is repeated
    # Cuts the new direction; 0.9 with momentum 0.9 is the damped form.
    dampening: float = key(0.0, ge=0, lt=1)

    name: ClassVar = "fedavgm"

    def step(self, weights: Tensors, direction: Tensors, slots: Tensors) -> Step:
        """m <- momentum * m + (1 - dampening) * direction;  w <- w + m"""
        velocity = _velocity(self.momentum, slots, direction, 1 - self.dampening)
        return named.add(weights, velocity), velocity


@dataclass(frozen=True)
class FedACG(ServerOptimizer):
    """Momentum, with clients that start one momentum step ahead.

    The published method also has a proximal term on the clients: FedProx with mu = 0.002.
    """

    # lambda: share of the last step that clients start ahead by
    momentum: float = key(0.85, ge=0, lt=1)

    name: ClassVar = "fedacg"

    def outgoing(self, weights: Tensors, slots: Tensors) -> Tensors:
        """w + momentum * m"""
        ahead = {
            name: tensor.double() + self.momentum * slots.get(name, 0.0)
            for name, tensor in weights.items()
        }
        return named.cast_like(ahead, weights)

    def step(self, weights: Tensors, direction: Tensors, slots: Tensors) -> Step:
        """m <- momentum * m + direction;  w <- w + m, which is where the clients' mean lies"""
        velocity = _velocity(self.momentum, slots, direction)
        return named.add(weights, velocity), velocity


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """m <- beta1 * m + (1 - beta1) * direction;  v by rule;  w <- w + lr * m / (sqrt(v) + epsilon)

    Without bias correction; v starts at epsilon^2.
    """

    lr: float = key(0.01, gt=0, le=10**6)  # the server's learning rate
    beta1: float = key(0.9, ge=0, lt=1)  # memory of the mean direction
    # tau: the larger, the less the steps adapt
    epsilon: float = key(1e-3, gt=0, le=10**6)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define second_moment")

    def step(self, weights: Tensors, direction: Tensors, slots: Tensors) -> Step:
        moved: dict[str, Tensor] = {}
        after: dict[str, Tensor] = {}
        for name, change in direction.items():
            m = self.beta1 * slots.get(f"m/{name}", 0.0) + (1 - self.beta1) * change
            before = slots.get(f"v/{name}")
            v = torch.full_like(change, self.epsilon**2) if before is None else before
            v = self.second_moment(v, change.square())
            moved[name] = weights[name] + self.lr * m / (v.sqrt() + self.epsilon)
            after[f"m/{name}"], after[f"v/{name}"] = m, v
        return moved, after


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """v <- v + direction^2"""

    beta1: float = key(0.0, ge=0, lt=1)  # memory of the mean direction

    name: ClassVar = "fedadagrad"

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v + squared


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """v <- beta2 * v + (1 - beta2) * direction^2"""

    beta2: float = key(0.99, ge=0, lt=1)  # memory of the squared directions

    name: ClassVar = "fedadam"

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """v <- v - (1 - beta2) * direction^2 * sign(v - direction^2)"""

    name: ClassVar = "fedyogi"

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * (v - squared).sign()


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    optimizer.name: optimizer
    for optimizer in (ServerOptimizer, FedAvgM, FedAdam, FedYogi, FedAdagrad, FedACG)
}


def _velocity(momentum: float, slots: Tensors, direction: Tensors, gain: float = 1.0) -> Tensors:
    """m <- momentum * m + gain * direction"""
    return {
        name: momentum * slots.get(name, 0.0) + gain * change for name, change in direction.items()
    }
