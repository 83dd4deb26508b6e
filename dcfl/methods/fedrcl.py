"""FedRCL: the hardest pairs on every level of the network, and no collapse within a class.

Seo et al., "Relaxed Contrastive Learning for Federated Learning", CVPR 2024, as released.

    L = L_CE + mu * mean over levels of mean_i [ contrast_i + penalty * divergence_i ]

`dcfl.losses.relaxed_contrastive` computes one level. The levels are the pooled outputs before the
ReLU of the stem and of each stage (five in the ResNet-18); logits are not among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.losses import relaxed_contrastive
from dcfl.methods.method import Method, Objective
from dcfl.settings import key


@dataclass(frozen=True)
class FedRCL(Method):
    """The hardest pairs on every level of the network, and no collapse within a class."""

    mu: float = key(1.0, ge=0)  # weight of contrast and penalty together
    temperature: float = key(0.05, gt=0)  # tau: the smaller, the more the hardest pairs count
    hardest_positives: int = key(1, ge=1)  # how many count; the term is divided by their number
    hardest_negatives: int = key(2, ge=1)  # how many count
    threshold: float = key(0.7)  # similarity above which a pair of one class is pushed apart
    penalty: float = key(1.0, ge=0)  # weight of that push; beta
    levels: tuple[int, ...] = key((), ge=0)  # stages to use, counted from 0; empty: all

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
            contrasts = [
                relaxed_contrastive(
                    stage,
                    batch.labels,
                    self.temperature,
                    self.hardest_positives,
                    self.hardest_negatives,
                    self.threshold,
                    self.penalty,
                )
                for stage in self._chosen(output.stages)
            ]
            cross_entropy = F.cross_entropy(output.logits, batch.labels)
            return cross_entropy + self.mu * torch.stack(contrasts).mean()

        return loss

    def _chosen(self, stages: tuple[Tensor, ...]) -> list[Tensor]:
        if not all(level < len(stages) for level in self.levels):
            raise ConfigError(
                f"method.levels = {list(self.levels)}, and the model has the levels "
                f"0 to {len(stages) - 1}"
            )
        return [stages[level] for level in self.levels or range(len(stages))]
