"""APFL: what a client uses is a mixture of the shared model and one of its own.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", 2020. w is FedAvg's. The
client's v is trained by the loss of the mixture, which is the model that the client keeps:

    m     = alpha * v + (1 - alpha) * w
    v     <- v - lr * grad_v L_CE(m)
    alpha <- alpha - lr * <v - w, grad L_CE(m)>     kept in [0, 1]; by the first batch of a round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from dcfl import tensors as named
from dcfl.client import Batch, Client
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class APFL(Method):
    """A mixture of the shared model and one of the client's own."""

    alpha: float = key(0.5, ge=0, le=1)  # the client's own share, at first
    adaptive: bool = True  # each client moves its alpha by its own loss

    equation: ClassVar = "L(v) = L_CE(m),  m = alpha v + (1 - alpha) w"
    cost: ClassVar = Cost(forwards=2, backwards=2, copies=1, kept="2 * weights + 4")
    neutral: ClassVar = None
    searched: ClassVar = ("alpha",)

    def own_objective(self, client: Client) -> Objective:
        v, kept = named.apart(client.memory, "v", "kept")
        own, shared = client.own_model, dict(client.model.named_parameters())
        if v:  # client.own is the mixture
            named.load(own, v, optional=own.state_dict())
        device = next(own.parameters()).device
        alpha = kept.get("alpha", torch.full((), self.alpha, device=device))
        alpha = alpha.clone().requires_grad_(self.adaptive)
        unit = client.scaler.scale(torch.ones_like(alpha.detach()))

        def moved(slope: Tensor) -> None:
            step = client.training.lr_in(client.round) * slope / unit
            client.tally["alpha"] = (alpha.detach() - step).clamp(0, 1)

        if self.adaptive:
            alpha.register_hook(moved)  # type: ignore[no-untyped-call]
        client.tally["alpha"] = alpha

        def loss(batch: Batch) -> Tensor:
            share = client.tally["alpha"]
            mixed = {
                name: share * live + (1 - share) * shared[name].detach()
                for name, live in own.named_parameters()
            }
            return F.cross_entropy(functional_call(own, mixed, batch.images).logits, batch.labels)

        return loss

    def own_weights(self, client: Client) -> Tensors:
        share = client.tally["alpha"].detach()
        w = named.snapshot(client.model, client.received)
        return {
            name: share * v + (1 - share) * w[name] if v.is_floating_point() else v
            for name, v in named.snapshot(client.own_model, client.received).items()
        }

    def remember(self, client: Client) -> Tensors:
        v = named.snapshot(client.own_model, client.received)
        return named.together(v=v, kept={"alpha": client.tally["alpha"].detach()})
