"""FedDyn (Acar et al., ICLR 2021), as a user would write it.

client   L = L_CE - <g_i, w> + alpha/2 |w - w_received|^2,    g_i <- g_i - alpha (w_i - w_received)
server   h <- h - alpha/m sum_i (w_i - w_received),    w <- mean_i w_i - h / alpha
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective


@dataclass(frozen=True)
class MyFedDyn(dcfl.Method):
    alpha: float = 0.1

    neutral: ClassVar = None

    def objective(self, client: Client) -> Objective:
        cross_entropy, received, own = super().objective(client), client.received, client.memory

        def loss(batch: Batch) -> Tensor:
            total = cross_entropy(batch)
            for name, live in client.federated():
                total = total + self.alpha / 2 * (live - received[name]).square().sum()
                if own:
                    total = total - (own[name] * live).sum()
            return total

        return loss

    def remember(self, client: Client) -> dict[str, Tensor]:
        return {
            name: client.memory.get(name, 0) - self.alpha * (live.detach() - client.received[name])
            for name, live in client.federated()
        }

    def server_step(self, step: dcfl.ServerStep) -> dcfl.ServerStep:
        h = {
            name: step.kept.get(name, 0) - self.alpha * step.clients / step.population * change
            for name, change in step.direction.items()
        }
        moved = {name: change - h[name] / self.alpha for name, change in step.direction.items()}
        return replace(step, direction=moved, kept=h)
