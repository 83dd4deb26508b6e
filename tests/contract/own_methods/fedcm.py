"""FedCM (Xu et al., 2021), as a user would write it: every gradient is mixed with the direction in
which the server last moved, which nobody uploads."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective


@dataclass(frozen=True)
class MyFedCM(dcfl.Method):
    alpha: float = 0.1  # the share of the client's own gradient

    neutral: ClassVar = {"alpha": 1.0}

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        loss = super().gradient(client, objective, batch)
        if client.shared:
            for name, live in client.federated():
                live.grad = self.alpha * live.grad + (1 - self.alpha) * client.shared[name]
        return loss

    def server_step(self, step: dcfl.ServerStep) -> dcfl.ServerStep:
        return replace(step, shared={n: -change.float() for n, change in step.direction.items()})
