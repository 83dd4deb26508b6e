"""FedBABU: clients train the body together; the classifier stays as it was initialised.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification",
ICLR 2022.

    step with  grad_body L_CE;  nothing moves the classifier

All clients so learn features for the same classifier. Each then trains a copy of the model on its
own images: `dcfl evaluate --fine-tune`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.methods.method import Method, Objective
from dcfl.models.parts import within


@dataclass(frozen=True)
class FedBABU(Method):
    """Only the body is trained; the classifier stays as it was initialised."""

    equation: ClassVar = "g_body = grad_body L_CE,  g_classifier = 0"
    neutral: ClassVar = None

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        loss = super().gradient(client, objective, batch)
        head = [live for name, live in client.trainable() if within(name, ["classifier"])]
        if not head:
            raise ConfigError("fedbabu needs a network whose last layer is called `classifier`")
        for live in head:
            live.grad = None  # not zero, which weight decay and momentum would move
        return loss
