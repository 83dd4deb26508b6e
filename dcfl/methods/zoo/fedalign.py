"""FedAlign: the last block is as smooth as a slim version of itself.

Mendieta et al., "Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning",
CVPR 2022. With the maps X and Y [channels, positions] that enter and leave the last block, for
each image:

    T      = X Y^T / positions                  X averaged to the size of Y
    sigma  = the largest singular value of T, by ten power iterations on T T^T
    L_Lip  = mean_i (sigma_i of the slim block - sigma_i of the whole block)^2
    g      = grad L_CE + mu * (L_CE / L_Lip) * grad L_Lip

The slim block is the first `width` of the channels of each of its layers; the whole one is not
trained by this term, and neither is anything before the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dcfl.client import Batch, Client, without_statistics
from dcfl.errors import ConfigError
from dcfl.methods.method import Method, Objective
from dcfl.settings import key

TINY = 1e-12  # a network that is dead on an image has the singular value 0


@dataclass(frozen=True)
class FedAlign(Method):
    """The last block is as smooth as a slim version of itself."""

    mu: float = key(0.45, ge=0)  # weight of the term
    width: float = key(0.25, gt=0, le=1)  # share of the channels in the slim block

    equation: ClassVar = (
        "g = grad L_CE + mu * (L_CE / L_Lip) * grad L_Lip,"
        "  L_Lip = mean_i (sigma_i^slim - sigma_i)^2"
    )
    neutral: ClassVar = {"mu": 0.0}

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        block = [client.model.get_submodule(name) for name in client.model.last_block]
        if not block:
            raise ConfigError(
                "fedalign trains the last block of convolutions, and this network does not say "
                "which one that is: set `last_block` of your FeatureModel, or use another method"
            )
        if not any(live.requires_grad for part in block for live in part.parameters()):
            return super().gradient(client, objective, batch)  # it is frozen
        with listening(block) as seen:
            loss = objective(batch)
        if len(seen) != 2:
            raise ConfigError("fedalign cannot listen to a compiled network: engine.compile=false")
        entering, leaving = (maps.detach().to(loss.dtype) for maps in seen)
        slim = maps = entering[:, : self._kept(entering.shape[1])]
        with without_statistics(client.model):
            for part in block:
                first = {name: self._first(live) for name, live in part.named_parameters()}
                maps = functional_call(part, first, (maps,))
        smooth = largest_singular_value(entering, leaving)
        term = F.mse_loss(largest_singular_value(slim, maps), smooth)
        share = self.mu * loss.detach() / term.detach().clamp(min=TINY)
        client.scaler.scale(loss + share * term).backward()  # type: ignore[no-untyped-call]
        return loss

    def _kept(self, channels: int) -> int:
        """Multiples of eight, and never less than nine tenths of the share."""
        wanted = channels * self.width
        nearest = int(wanted + 4) // 8 * 8
        return min(channels, max(8, nearest + 8 * (nearest < 0.9 * wanted)))

    def _first(self, live: Tensor) -> Tensor:
        """A layer's tensor for its first channels, those that leave it and those that enter it."""
        kept = live[: self._kept(live.shape[0])]
        return kept[:, : self._kept(live.shape[1])] if live.ndim > 1 else kept


@contextmanager
def listening(block: list[nn.Module]) -> Iterator[list[Tensor]]:
    """What enters the first of these modules within the block of code, and what leaves the last."""
    seen: list[Tensor] = []
    taps = (
        block[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])),
        block[-1].register_forward_hook(lambda _, inputs, output: seen.append(output)),
    )
    try:
        yield seen
    finally:
        for tap in taps:
            tap.remove()


def largest_singular_value(entering: Tensor, leaving: Tensor) -> Tensor:
    """Of each image's T [B], from the maps that enter a block and leave it, before their ReLU."""
    height, width = leaving.shape[-2:]
    entering = F.adaptive_avg_pool2d(entering, (height, width)).flatten(2)
    transmitting = entering @ F.relu(leaving).flatten(2).mT / (height * width)  # [B, in, out]
    gram = transmitting @ transmitting.mT
    vector = length = torch.ones_like(gram[:, :, :1])
    for _ in range(10):
        product = gram @ vector
        length = product.norm(dim=1, keepdim=True).clamp(min=TINY)
        vector = product / length
    return length.flatten().sqrt()
