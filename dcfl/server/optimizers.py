"""How the server moves its weights, given the mean direction of the clients."""

from __future__ import annotations

from torch import Tensor

from dcfl import weights as named
from dcfl.messages import Tensors


class ServerOptimizer:
    """FedAvg: go where the clients' mean points. Sees parameters only, in float64.

    `slots` is what an optimiser keeps between rounds (momentum and the like); it belongs to the
    server's state, not to the optimiser.
    """

    def outgoing(self, weights: Tensors, slots: Tensors) -> Tensors:
        """The weights to send: what the clients start from."""
        return weights

    def step(
        self, weights: Tensors, direction: Tensors, slots: Tensors
    ) -> tuple[dict[str, Tensor], Tensors]:
        return named.add(weights, direction), slots
