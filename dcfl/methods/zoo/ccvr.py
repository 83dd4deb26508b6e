"""CCVR: the classifier, trained once more on the server with features that never existed.

Luo et al., "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID
Data", NeurIPS 2021. With the embeddings z of all images of class c at the clients of a round:

    mu_c    = sum z / N_c
    Sigma_c = (sum z z^T - N_c mu_c mu_c^T) / (N_c - 1)
    the server draws features of each class from N(mu_c, Sigma_c) and trains the classifier on them

Training itself is FedAvg's: clients receive the classifier as it was before, in `shared`, and start
from that. So the model of every round is what calibration after that round would have given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl import tensors as named
from dcfl.client import Client
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, MeanUpload, Method, ServerStep
from dcfl.settings import key

NAMES = ("classifier.weight", "classifier.bias")


@dataclass(frozen=True)
class CCVR(Method):
    """The classifier, trained once more on the server with features that never existed."""

    samples: int = key(100, ge=1, le=10_000)  # features drawn for each class
    steps: int = key(100, ge=0, le=10_000)  # of gradient descent on all of them; 0 is FedAvg
    lr: float = key(0.01, gt=0)  # of these steps

    equation: ClassVar = "W <- argmin L_CE(W z, c) over z ~ N(mu_c, Sigma_c), all classes c alike"
    cost: ClassVar = Cost(
        copies=1, passes=1, up="4 * classes * (d * d + d + 1)", down="4 * classes * (d + 1)"
    )
    neutral: ClassVar = {"steps": 0}
    any_optimizer: ClassVar = False

    def start(self, client: Client) -> Tensors:
        layer = getattr(client.model, "classifier", None)
        if not isinstance(layer, nn.Linear) or layer.bias is None or not layer.weight.requires_grad:
            raise ConfigError("ccvr needs a trained linear layer `classifier` with a bias")
        return {name: client.shared[name] for name in NAMES if name in client.shared}

    @torch.no_grad()
    def upload(self, client: Client) -> Tensors:
        for batch in client.data.clean_batches(client.global_model):
            z = client.global_model(batch.images).embedding.float()
            member = F.one_hot(batch.labels, client.data.classes).float()
            products = torch.einsum("bk,bi,bj->kij", member, z, z)
            found = {"counts": member.sum(dim=0), "sums": member.T @ z, "products": products}
            for name, own in found.items():
                client.tally[name] = client.tally.get(name, 0) + own
        return client.tally

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        d = parameters[NAMES[0]].shape[1]
        shapes = {"counts": (classes,), "sums": (classes, d), "products": (classes, d, d)}
        return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}

    def merge_mean(self, shared: Tensors, uploads: MeanUpload, population: int) -> Tensors:
        return {name: mean * uploads.clients for name, mean in uploads.tensors.items()}

    def server_step(self, step: ServerStep) -> ServerStep:
        """`shared` holds the sums of the round; clients get the classifier instead."""
        if NAMES[0] not in step.weights:  # personal: there is nothing to calibrate
            return replace(step, shared={})
        kept = dict(step.shared)
        if step.kept:  # of a class that was absent, what was known before
            absent = step.shared["counts"] < 2
            for name, old in step.kept.items():
                kept[name] = torch.where(absent.view(-1, *[1] * (old.ndim - 1)), old, kept[name])
        before = {name: step.weights[name] + step.direction[name] for name in NAMES}
        features, labels = self.drawn(kept, step.round)
        after = self.calibrated(before[NAMES[0]], before[NAMES[1]], features, labels)
        moved = {n: new - step.weights[n] for n, new in zip(NAMES, after, strict=True)}
        shared = named.cast_like(before, step.weights)
        return replace(step, direction={**step.direction, **moved}, shared=shared, kept=kept)

    def drawn(self, moments: Tensors, seed: int) -> tuple[Tensor, Tensor]:
        """Features [M, d] of the classes with two images or more, and their labels [M]."""
        known = (moments["counts"] > 1).nonzero()[:, 0]
        counts = moments["counts"][known, None, None]
        means = moments["sums"][known, None] / counts  # [classes, 1, d]
        spread = (moments["products"][known] - counts * means.mT @ means) / (counts - 1)
        # Few images span few directions; round-off makes the others slightly negative.
        values, vectors = torch.linalg.eigh(spread)
        factor = vectors * values.clamp(min=0).sqrt()[:, None]
        generator = torch.Generator().manual_seed(seed)
        shape = (len(known), self.samples, means.shape[2])
        noise = torch.randn(shape, generator=generator, dtype=means.dtype)
        return (means + noise @ factor.mT).flatten(0, 1), known.repeat_interleave(self.samples)

    def calibrated(
        self, weight: Tensor, bias: Tensor, features: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        target = F.one_hot(labels, len(bias)).to(features.dtype)
        for _ in range(self.steps if len(labels) else 0):
            slope = ((features @ weight.T + bias).softmax(dim=1) - target) / len(labels)
            weight, bias = weight - self.lr * slope.T @ features, bias - self.lr * slope.sum(dim=0)
        return weight, bias
