"""DCFL: separate weights for attraction and repulsion, between samples (SW) or to prototypes (PW).

Kim, Baek and Chung, "Decoupled Contrastive Learning for Federated Learning". Eq. 10, per anchor i:

    l_i = -align * sum_{p in P_i} sim(z_i, p) / tau
          + uniform * |P_i| * log sum_{n in N_i} exp(sim(z_i, n) / tau)
    L = L_CE + mu * mean_i l_i

A client has few positives and few, biased negatives; the loss weights them independently. SW and PW
are the same loss with different masks. SW takes the mean over P_i, l_i / |P_i|, so that mu means
the same for both; `reduction = "sum"` is Eq. 10 as printed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import isclose
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import SettingsWarning
from dcfl.losses import cosine_similarity, decoupled_contrastive
from dcfl.methods.method import Objective, OnLevels
from dcfl.methods.prototypes import PrototypeMethod
from dcfl.settings import key


@dataclass(frozen=True)
class Decoupled(OnLevels):
    """The hyper-parameters of both variants."""

    mu: float = key(0.1, ge=0)  # weight of the contrastive term
    temperature: float = key(0.5, gt=0)  # tau: the smaller, the more the nearest negatives count
    align: float = key(0.9, ge=0)  # lambda_a, the weight of attraction to positives
    uniform: float = key(0.1, ge=0)  # lambda_u, the weight of repulsion from negatives

    neutral: ClassVar = {"mu": 0.0}
    published: ClassVar = {
        "cifar10": {"mu": 10.0},
        "cifar100": {"mu": 10.0},
        "tiny-imagenet": {"mu": 1.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isclose(self.align + self.uniform, 1, abs_tol=1e-9):
            warnings.warn(
                f"align + uniform = {self.align + self.uniform:g}; the paper asks for 1",
                SettingsWarning,
                stacklevel=3,
            )


@dataclass(frozen=True)
class DCFLSampleWise(Decoupled):
    """Separate weights for attraction within a class and repulsion between classes, in a batch.

    P_i are the other samples of the batch with i's label, N_i those with another label.
    """

    reduction: Literal["sum", "mean"] = "mean"  # over positives; "sum" is Eq. 10
    anchors: Literal["all", "with-positives", "sum"] = "all"  # the batch: mean or sum
    # "view": a second augmented view of the same image.
    positives: Literal["same-class", "view", "same-class+view"] = "same-class"
    # "all-others": positives too, which couples the two terms again.
    negatives: Literal["other-classes", "all-others", "all-but-positives"] = "other-classes"

    name: ClassVar = "dcfl-sw"
    equation: ClassVar = (
        "L = L_CE + mu * mean_i [ -align * mean_{p in P_i} sim(z_i, p)/tau"
        " + uniform * log sum_{n in N_i} exp(sim(z_i, n)/tau) ]"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reduction == "sum" and self.positives != "view" and self.mu >= 1:
            warnings.warn(  # no numbers in it, so that a command with several such runs warns once
                'dcfl-sw with method.reduction = "sum" and a mu of 1 or more trains to chance: '
                "the pull of all positives of a batch drowns the cross-entropy; "
                'take "mean", or a mu of 0.01',
                SettingsWarning,
                stacklevel=3,
            )

    @property
    def second_view(self) -> bool:
        return "view" in self.positives

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            views = [view for view in (batch.images, batch.second_view) if view is not None]
            output = client.model(torch.cat(views))
            # The classifier learns from the first view only, as in every other method.
            cross_entropy = F.cross_entropy(output.logits[: len(batch.labels)], batch.labels)
            contrast = self.over_levels(output, lambda level: self._contrast(level, batch.labels))
            return cross_entropy + self.mu * contrast

        return loss

    def _contrast(self, embedding: Tensor, labels: Tensor) -> Tensor:
        """The decoupled loss over all views: `embedding` [views * B, d], `labels` [B]."""
        views = len(embedding) // len(labels)
        others = ~torch.eye(len(embedding), dtype=torch.bool, device=labels.device)
        same_class = _same(labels.repeat(views))
        positives = same_class & others
        if self.positives == "view":
            positives = (
                _same(torch.arange(len(labels), device=labels.device).repeat(views)) & others
            )
        negatives = {
            "other-classes": ~same_class,
            "all-others": others,
            "all-but-positives": others & ~positives,
        }[self.negatives]
        mean = decoupled_contrastive(
            cosine_similarity(embedding, embedding),
            positives,
            negatives,
            self.temperature,
            self.align,
            self.uniform,
            self.reduction,
        )
        if self.anchors == "all":
            return mean
        counted = 1 if self.anchors == "sum" else positives.any(dim=1).sum().clamp(min=1)
        return mean * len(embedding) / counted


def _same(values: Tensor) -> Tensor:
    """Mask of equal pairs: [n] -> [n, n]."""
    return values[:, None] == values[None, :]


@dataclass(frozen=True)
class DCFLPrototypeWise(PrototypeMethod, Decoupled):
    """Separate weights for attraction to the class prototype and repulsion from the others.

    P_i is the global prototype of i's class, N_i are the known prototypes of the other classes.
    """

    name: ClassVar = "dcfl-pw"
    equation: ClassVar = (
        "L = L_CE + mu * mean_i [ -align * sim(z_i, c_{y_i})/tau"
        " + uniform * log sum_{g != y_i} exp(sim(z_i, c_g)/tau) ]"
    )

    def against_prototypes(
        self, round: int, cross_entropy: Tensor, similarity: Tensor, same: Tensor, others: Tensor
    ) -> Tensor:
        return cross_entropy + self.mu * decoupled_contrastive(
            similarity, same, others, self.temperature, self.align, self.uniform
        )
