"""FedRCL: the hardest pairs on every level of the network, and no collapse within a class.

Seo et al., "Relaxed Contrastive Learning for Federated Learning", CVPR 2024, as released.

    L = L_CE + mu * mean over levels of mean_i [ contrast_i + penalty * divergence_i ]

`dcfl.losses.relaxed_contrastive` computes one level. The levels are the pooled outputs before the
ReLU of the stem and of each stage (five in the ResNet-18); logits are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.losses import relaxed_contrastive
from dcfl.methods.method import Levels, Objective, OnLevels
from dcfl.settings import key


@dataclass(frozen=True)
class FedRCL(OnLevels):
    """The hardest pairs on every level of the network, and no collapse within a class."""

    mu: float = key(1.0, ge=0)  # weight of contrast and penalty together
    temperature: float = key(0.05, gt=0)  # tau: the smaller, the more the hardest pairs count
    # How many count; the term is divided by their number. Memory grows with the product of both.
    hardest_positives: int = key(1, ge=1, le=256)
    hardest_negatives: int = key(2, ge=1, le=256)  # how many count
    threshold: float = key(0.7)  # similarity above which a pair of one class is pushed apart
    penalty: float = key(1.0, ge=0)  # weight of that push; beta
    levels: Levels = key("all", ge=0, kw_only=True)

    equation: ClassVar = (
        "L = L_CE + mu * mean over levels of mean_i [ log(1 + sum_n exp((s_in - s_ip)/tau))"
        " + penalty * log(1 + exp((q_i - 1)/tau)) ]"
    )
    neutral: ClassVar = {"mu": 0.0}
    published: ClassVar = {
        dataset: {"mu": 1.0} for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    }

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            how = (self.hardest_positives, self.hardest_negatives, self.threshold, self.penalty)
            contrast = self.over_levels(
                output,
                lambda level: relaxed_contrastive(level, batch.labels, self.temperature, *how),
            )
            return F.cross_entropy(output.logits, batch.labels) + self.mu * contrast

        return loss
