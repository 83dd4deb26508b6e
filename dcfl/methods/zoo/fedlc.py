"""FedLC and FedRS: logits adjusted by how many images of each class a client has.

Both change the logits f_c before the cross-entropy, during training alone. n_c is the number of the
client's images of class c.

FedLC: Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML
2022. A rare class must win by a larger margin; a class that the client lacks takes no part.

    f_c <- f_c - tau * n_c^(-1/4)

FedRS: Li and Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution
Non-IID Data", KDD 2021. A class that the client lacks is pushed away less.

    f_c <- s_c * f_c        "share":   s_c = alpha + (1 - alpha) * n_c / max_k n_k
                            "missing": s_c = 1 if n_c > 0, otherwise alpha
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.methods.method import Method, Objective
from dcfl.settings import key


def class_counts(client: Client) -> Tensor:
    """How many images of each class the client trains on."""
    return F.one_hot(client.data.images.labels, client.data.classes).sum(dim=0)


@dataclass(frozen=True)
class FedLC(Method):
    """Rare classes of a client must win by a larger margin."""

    tau: float = key(1.0, ge=0)  # size of the margins; 0: none, and FedAvg

    equation: ClassVar = "L = L_CE(f_c - tau * n_c^(-1/4))"
    neutral: ClassVar = {"tau": 0.0}

    def objective(self, client: Client) -> Objective:
        if not self.tau:
            return super().objective(client)
        margins = self.tau * class_counts(client).double() ** -0.25  # infinite without images

        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            return F.cross_entropy(logits - margins.to(logits.dtype), batch.labels)

        return loss


@dataclass(frozen=True)
class FedRS(Method):
    """Logits of classes that a client lacks are scaled down, so that it forgets them less."""

    alpha: float = key(0.5, ge=0, le=1)  # factor of a class without images; 1 is FedAvg
    # "share": by how many images a class has, as in the released code; "missing": the paper's
    scale: Literal["share", "missing"] = "share"

    equation: ClassVar = "L = L_CE(s_c * f_c),  s_c = alpha + (1 - alpha) * n_c / max_k n_k"
    neutral: ClassVar = {"alpha": 1.0}

    def objective(self, client: Client) -> Objective:
        counts = class_counts(client).double()
        held = (counts > 0).double() if self.scale == "missing" else counts / counts.max()
        scales = self.alpha + (1 - self.alpha) * held

        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            return F.cross_entropy(scales.to(logits.dtype) * logits, batch.labels)

        return loss
