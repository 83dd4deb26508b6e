"""FedProc: every embedding near the global prototype of its class, against all the others.

Mu et al., "FedProc: Prototypical Contrastive Federated Learning on Non-IID Data", FGCS 2023.

    l_i = -log( exp(sim(z_i, c_{y_i})/tau) / sum_g exp(sim(z_i, c_g)/tau) )
    fixed       L = L_CE + mu * mean_i l_i
    published   L = a * L_CE + (1 - a) * mean_i l_i,   a = min(t / ramp, 1), t = 0 in round one

This is SupCon over prototypes, which are computed and shared as in DCFL-PW.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from dcfl.losses import supervised_contrastive
from dcfl.methods.method import OnLevels
from dcfl.methods.prototypes import PrototypeMethod
from dcfl.settings import key


@dataclass(frozen=True)
class FedProc(PrototypeMethod, OnLevels):
    """Every embedding near the global prototype of its class, against all the others."""

    mu: float = key(0.1, ge=0)  # weight of the contrastive term, with the fixed schedule
    # tau: the smaller, the more near prototypes count; 1 as published
    temperature: float = key(0.5, gt=0)
    # "published": from the contrastive term to cross-entropy over `ramp` rounds, without mu.
    schedule: Literal["fixed", "published"] = "fixed"
    ramp: int = key(100, ge=1)  # rounds until the published schedule is pure cross-entropy

    equation: ClassVar = (
        "L = L_CE + mu * mean_i -log( exp(sim(z_i, c_{y_i})/tau) / sum_g exp(sim(z_i, c_g)/tau) )"
    )
    neutral: ClassVar = {"mu": 0.0}
    published: ClassVar = {
        dataset: {"mu": 10.0} for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    }

    def against_prototypes(
        self, round: int, cross_entropy: Tensor, similarity: Tensor, same: Tensor, others: Tensor
    ) -> Tensor:
        # An anchor whose class has no prototype yet has no positive and contributes 0.
        contrast = supervised_contrastive(similarity, same, same | others, self.temperature)
        if self.schedule == "fixed":
            return cross_entropy + self.mu * contrast
        share = min((round - 1) / self.ramp, 1.0)
        return share * cross_entropy + (1.0 - share) * contrast
