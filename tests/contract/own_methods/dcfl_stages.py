"""DCFL's loss on every stage of the network instead of the last embedding alone, as a user would
write it: deeper stages count more."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective
from dcfl.losses import cosine_similarity, decoupled_contrastive


@dataclass(frozen=True)
class DCFLOnStages(dcfl.Method):
    mu: float = 0.1
    growth: float = 2.0  # a stage's weight over that of the one before

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output = client.model(batch.images)
            same = batch.labels[:, None] == batch.labels
            others = ~torch.eye(len(same), dtype=torch.bool)
            terms = torch.stack(
                [
                    self.growth**depth
                    * decoupled_contrastive(cosine_similarity(z, z), same & others, ~same)
                    for depth, z in enumerate(output.stages)
                ]
            )
            return F.cross_entropy(output.logits, batch.labels) + self.mu * terms.mean()

        return loss
