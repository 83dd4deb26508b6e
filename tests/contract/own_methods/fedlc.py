"""FedLC (Zhang et al., ICML 2022), as a user would write it: a margin n_c^(-1/4) on each logit, so
that a client's rare classes must win by more, and none for classes that it lacks."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective


@dataclass(frozen=True)
class MyFedLC(dcfl.Method):
    tau: float = 1.0

    neutral: ClassVar = {"tau": 0.0}

    def objective(self, client: Client) -> Objective:
        if not self.tau:
            return super().objective(client)
        counts = client.data.images.labels.bincount(minlength=client.data.classes)
        margins = self.tau * counts.double() ** -0.25  # infinite without images

        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            return F.cross_entropy(logits - margins.to(logits.dtype), batch.labels)

        return loss
