"""Every client by itself: the baseline of `federation.baseline = "alone"`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from dcfl.client import Client
from dcfl.messages import Tensors
from dcfl.methods.method import Method, ServerStep


@dataclass(frozen=True)
class Alone(Method):
    """FedAvg's training without the average: a client goes on from its own weights, and the
    server's stay the initial ones."""

    neutral: ClassVar = None
    keeps_model: ClassVar = True

    def start(self, client: Client) -> Tensors:
        return client.own

    def server_step(self, step: ServerStep) -> ServerStep:
        nowhere = {name: torch.zeros_like(one) for name, one in step.direction.items()}
        return replace(step, direction=nowhere)
