"""FedSOL: the gradient of the task at weights perturbed against forgetting.

Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated
Learning", CVPR 2024. Per batch:

    g_p = grad of KL( softmax(f_received(x)/T) || softmax(f_w(x)/T) ),  T = 3
    e   = rho * Lambda * g_p / ||g_p||
    step with the gradient of L_CE at w + e, taken at w

fixed: Lambda = 1; adaptive: per tensor |w - w_received| at unit length along the output channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, observe, perturbed, without_statistics
from dcfl.errors import ConfigError
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key

ROUND_OFF = 1e-7  # a shorter gradient is noise: at the first step w = w_received and g_p = 0


@dataclass(frozen=True)
class FedSOL(Method):
    """The gradient of the task at weights perturbed against forgetting."""

    rho: float = key(1.0, ge=0)  # length of the perturbation
    # "adaptive": parameters that have moved more are perturbed more.
    variant: Literal["adaptive", "fixed"] = "adaptive"
    perturb: Literal["all", "head"] = "all"  # which parameters; "head": the classifier's
    temperature: float = key(3.0, gt=0)  # of the distillation

    equation: ClassVar = (
        "g = grad L_CE(w + e),  e = rho * Lambda * g_p/||g_p||,"
        "  g_p = grad KL(received || local), Lambda ~ |w - w_received|"
    )
    cost: ClassVar = Cost(forwards=3, backwards=2, copies=2)
    neutral: ClassVar = {"rho": 0.0}

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        # Only the first pass, at the unperturbed weights, updates running statistics.
        offsets = self._offsets(client, batch)
        with perturbed(offsets), without_statistics(client.model):
            return super().gradient(client, objective, batch)

    def _offsets(self, client: Client, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """The parameters to perturb, each with its offset."""
        chosen = [
            (name, live)
            for name, live in client.trainable()
            if self.perturb == "all" or name.startswith("classifier.")
        ]
        if not chosen:
            raise ConfigError('method.perturb = "head", and no `classifier` is trained')
        proximal = self._proximal_gradient(client, batch, [live for _, live in chosen])
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in proximal]))
        noise = client.scaler.scale(torch.full_like(norm, ROUND_OFF))
        scale = torch.where(norm < noise, 0.0, self.rho / (norm + 1e-12))
        if self.variant == "fixed":
            return [(live, scale * g) for (_, live), g in zip(chosen, proximal, strict=True)]
        return [
            (live, scale * F.normalize((live - client.received[name]).detach().abs(), dim=0) * g)
            for (name, live), g in zip(chosen, proximal, strict=True)
        ]

    def _proximal_gradient(
        self, client: Client, batch: Batch, parameters: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """The gradient of the distance between the local and the received model's predictions."""
        # The teacher uses batch statistics, as the student does: at w = w_received they agree.
        teacher = client.global_model.train()
        with without_statistics(teacher):
            target = observe(teacher, batch.images).logits.div(self.temperature).softmax(dim=1)
        logits = client.model(batch.images).logits
        predicted = logits.detach().div(self.temperature).softmax(dim=1)
        # The derivative of the mean KL by the logits, in closed form: exactly 0 if the two agree.
        slope = (predicted - target) / (self.temperature * len(batch.labels))
        # Zeros for a side head, which the predictions do not depend on.
        return torch.autograd.grad(
            logits,
            parameters,
            client.scaler.scale(slope),
            allow_unused=True,
            materialize_grads=True,
        )
