"""pFedMe: every client's own model solves its task near the shared one, which follows it.

T. Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020. For
each batch, with theta from where the batch before left it, at first from w_received:

    theta <- theta - lr_own * (grad L_CE(theta) + lambda * (theta - w) + decay * theta)    K times
    w     <- w - lr * lambda * (w - theta)

w never sees an image itself: lambda (w - theta) is the gradient of L's Moreau envelope at w.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client, without_statistics
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method, Objective
from dcfl.settings import key
from dcfl.tensors import load, snapshot


@dataclass(frozen=True)
class PFedMe(Method):
    """Every client's own model solves its task near the shared one, which follows it."""

    lam: float = key(15.0, ge=0)  # how near; the paper's lambda
    steps: int = key(5, ge=1, le=1000)  # of the own model for each batch; the paper's K
    lr: float = key(0.01, gt=0)  # of these steps
    decay: float = key(0.001, ge=0)  # weight decay in these steps; the released code's mu

    equation: ClassVar = "theta ~ argmin L_CE + lambda/2 ||theta - w||^2,  g = lambda (w - theta)"
    cost: ClassVar = Cost(forwards=5, backwards=5, copies=1, kept="weights")
    neutral: ClassVar = None
    searched: ClassVar = ("lam", "lr")

    def objective(self, client: Client) -> Objective:
        own = client.own_model
        load(own, client.received, optional=own.state_dict())

        def loss(batch: Batch) -> Tensor:
            return F.cross_entropy(own(batch.images).logits, batch.labels)

        return loss

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        own = client.own_model
        pairs = [(own.get_parameter(name), live) for name, live in client.trainable()]
        thetas, losses = [theta for theta, _ in pairs], []
        for step in range(self.steps):
            with without_statistics(own) if step else nullcontext():  # a batch moves them once
                losses.append(objective(batch))
            scaled = client.scaler.scale(losses[-1])
            slopes = torch.autograd.grad(scaled, thetas, allow_unused=True, materialize_grads=True)
            unit = client.scaler.scale(torch.ones_like(losses[-1].detach()))
            with torch.no_grad():
                for (theta, w), slope in zip(pairs, slopes, strict=True):
                    pull = self.lam * (theta - w) + self.decay * theta
                    theta.sub_(self.lr * (slope / unit + pull))
        with torch.no_grad():
            for theta, w in pairs:
                w.grad = client.scaler.scale(self.lam * (w - theta))
            for name, moved in own.named_buffers():  # w is never shown an image
                client.model.get_buffer(name).copy_(moved)
        return losses[0]

    def own_weights(self, client: Client) -> Tensors:
        return snapshot(client.own_model, client.received)
