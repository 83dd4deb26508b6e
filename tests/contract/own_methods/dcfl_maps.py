"""DCFL's loss on feature maps, as a user would write it: each quarter of an image is attracted to
the same quarter of images of its class, and repelled from that of others."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import dcfl
from dcfl import Batch, Client, Objective
from dcfl.losses import cosine_similarity, decoupled_contrastive


@dataclass(frozen=True)
class DCFLOnMaps(dcfl.Method):
    mu: float = 0.1

    def objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output, maps = client.maps(batch.images)
            quarters = F.adaptive_avg_pool2d(maps[-1], 2).flatten(2).unbind(dim=2)  # 4 [B, C]
            same = batch.labels[:, None] == batch.labels
            others = ~torch.eye(len(same), dtype=torch.bool)
            terms = [
                decoupled_contrastive(cosine_similarity(z, z), same & others, ~same)
                for z in quarters
            ]
            contrast = torch.stack(terms).mean()
            return F.cross_entropy(output.logits, batch.labels) + self.mu * contrast

        return loss
