"""APFL (Deng, Kamani and Mahdavi, 2020) with a fixed alpha, as a user would write it: the model
that a client uses is alpha v + (1 - alpha) w, and v is trained by the loss of that mixture."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

import dcfl
from dcfl import Batch, Client, Objective
from dcfl.tensors import load, snapshot


@dataclass(frozen=True)
class MyAPFL(dcfl.Method):
    alpha: float = 0.5

    neutral: ClassVar = None

    def own_objective(self, client: Client) -> Objective:
        if client.memory:  # v; client.own is the mixture
            load(client.own_model, client.memory, optional=client.own_model.state_dict())
        shared = dict(client.model.named_parameters())

        def loss(batch: Batch) -> Tensor:
            mixed = {
                name: self.alpha * live + (1 - self.alpha) * shared[name].detach()
                for name, live in client.own_model.named_parameters()
            }
            output = functional_call(client.own_model, mixed, batch.images)
            return F.cross_entropy(output.logits, batch.labels)

        return loss

    def own_weights(self, client: Client) -> dict[str, Tensor]:
        v, w = (snapshot(one, client.received) for one in (client.own_model, client.model))
        return {
            name: self.alpha * v[name] + (1 - self.alpha) * w[name]
            if v[name].is_floating_point()
            else v[name]
            for name in v
        }

    def remember(self, client: Client) -> dict[str, Tensor]:
        return snapshot(client.own_model, client.received)
