"""FedSpeed and FedDC: like FedDyn, with a client's drift h_i, and more.

With FedDyn's server, and aim = w_received - h_i:

Sun et al., "FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization
Accuracy", ICLR 2023. The paper's lambda is 1 / alpha, and e is FedSAM's perturbation:

    step with  grad L_CE(w + e) + alpha * (w - aim)

Gao et al., "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction",
CVPR 2022. c_i and c are SCAFFOLD's variates:

    L = L_CE + (alpha / 2) * ||w - aim||^2 + <c - c_i, w>
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.client import Batch, Client
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method, Objective
from dcfl.methods.scaffold import Scaffold
from dcfl.methods.zoo.feddyn import FedDyn
from dcfl.methods.zoo.fedsam import FedSAM
from dcfl.settings import key

PARTS = ("drift", "variate")  # of what a client of FedDC remembers


@dataclass(frozen=True)
class FedSpeed(FedSAM, FedDyn):
    """Flat minima near a target that makes up for this client's drift."""

    alpha: float = key(0.1, ge=0)  # weight of the pull to the target: 1 / lambda

    equation: ClassVar = "g = grad L_CE(w + e) + alpha * (w - (w_received - h_i)),  w <- mean + H"
    cost: ClassVar = Cost(forwards=2, backwards=2, copies=1, kept="parameters")
    neutral: ClassVar = None  # type: ignore[assignment]  # H moves the server, whatever they are

    def objective(self, client: Client) -> Objective:
        return Method.objective(self, client)  # only the task is perturbed

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        loss = super().gradient(client, objective, batch)
        off_aim = self.remember(client)
        for name, live in client.federated():
            back = client.scaler.scale(self.alpha * off_aim[name])
            live.grad = back if live.grad is None else live.grad + back
        return loss


@dataclass(frozen=True)
class FedDC(FedDyn, Scaffold):  # type: ignore[misc]  # neither has its neutral value
    """SCAFFOLD's correction, and a pull to a target that makes up for this client's drift."""

    equation: ClassVar = (
        "L = L_CE + alpha/2 ||w - (w_received - h_i)||^2 + <c - c_i, w>,  w <- mean + H"
    )
    cost: ClassVar = Cost(up="parameters", down="parameters", kept="2 * parameters")

    def _with(self, client: Client, part: str) -> Client:
        """The same client with one part of its memory."""
        return replace(client, memory=named.apart(client.memory, *PARTS)[PARTS.index(part)])

    def objective(self, client: Client) -> Objective:
        corrected = Scaffold.objective(self, self._with(client, "variate"))
        drift = self._with(client, "drift").memory
        pairs = [
            (live, client.received[name] - drift.get(name, 0.0))
            for name, live in client.federated()
        ]

        def loss(batch: Batch) -> Tensor:
            squares = [(live - aim).square().sum() for live, aim in pairs]
            return corrected(batch) + self.alpha / 2 * torch.stack(squares).sum()

        return loss

    def upload(self, client: Client) -> Tensors:
        before = self._with(client, "variate")
        new = Scaffold.remember(self, before)
        return named.subtract(new, before.memory) if before.memory else new

    def remember(self, client: Client) -> Tensors:
        return named.together(
            drift=FedDyn.remember(self, self._with(client, "drift")),
            variate=Scaffold.remember(self, self._with(client, "variate")),
        )
