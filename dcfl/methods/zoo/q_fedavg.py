"""q-FedAvg: clients with a high loss count more, so that none is left behind.

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020. With the loss F_k of the
received model on all images of client k, D_k = w_received - w_k and the learning rate lr:

    w <- w_received - (sum_k F_k^q D_k) / (sum_k F_k^q + q * F_k^(q-1) * ||D_k||^2 / lr)

The sums are over the clients of a round, which count alike whatever their number of images. The
denominator bounds the step where F^q is steep: 1/lr stands for the slope's Lipschitz constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from dcfl.client import Client
from dcfl.errors import ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Method, ServerStep
from dcfl.settings import key

TINY = 1e-10  # a loss of 0 has no negative power


@dataclass(frozen=True)
class QFedAvg(Method):
    """Clients with a high loss count more, so that none is left behind."""

    q: float = key(1.0, ge=0)  # how much more; 0 is FedAvg

    name: ClassVar = "q-fedavg"
    equation: ClassVar = (
        "w <- w_received - (sum_k F_k^q D_k) / (sum_k F_k^q + q F_k^(q-1) ||D_k||^2 / lr),"
        "  D_k = w_received - w_k"
    )
    cost: ClassVar = Cost(copies=1, passes=1, up="8")
    neutral: ClassVar = {"q": 0.0}
    any_optimizer: ClassVar = False  # how far the server goes is what the method is about

    @torch.no_grad()
    def upload(self, client: Client) -> Tensors:
        model = client.global_model
        losses = [
            F.cross_entropy(model(batch.images).logits.double(), batch.labels, reduction="sum")
            for batch in client.data.clean_batches(model)
        ]
        return {"loss": torch.stack(losses).sum() / len(client.data)}

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {"loss": torch.empty((), dtype=torch.float64, device="meta")}

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        if update.upload["loss"] < 0:
            raise ProtocolError("a cross-entropy below 0")

    def weigh(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> Sequence[float]:
        return [loss_of(update) ** self.q for update in updates]

    def server_step(self, step: ServerStep) -> ServerStep:
        total = sum(self.weigh(step.replies, ()))
        steep = 0.0
        for update in step.replies:
            change = (update.weights[name] - sent for name, sent in step.weights.items())
            square = sum(float(part.double().square().sum()) for part in change)
            steep += self.q * loss_of(update) ** (self.q - 1) * square / step.lr
        share = total / (total + steep)
        return replace(step, direction={n: share * d for n, d in step.direction.items()})


def loss_of(update: ClientUpdate) -> float:
    return float(update.upload["loss"]) + TINY
