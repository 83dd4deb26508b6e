"""FedALA: a client begins its round between its own model and the shared one, number by number.

Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023.
Before training, for the numbers v of chosen parts of the client's own model and w of the received:

    start  = v + (w - v) * s
    s      <- s - eta * (w - v) * grad L_CE(start)       kept in [0, 1]; ones at first

The first time until the loss settles, later for one pass over a part of the images. All other parts
begin as received. Then FedAvg, and what it leaves is the client's own model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import pstdev
from typing import ClassVar

import torch
import torch.nn.functional as F

from dcfl.client import Batch, Client, without_statistics
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.methods.method import Cost, Method
from dcfl.models.parts import within
from dcfl.settings import key
from dcfl.system.transfers import on_device, read_numbers
from dcfl.tensors import copies

LOOKS_BACK, SETTLED, AT_MOST = 10, 0.1, 100  # passes, deviation of their losses, passes


@dataclass(frozen=True)
class FedALA(Method):
    """A client begins its round between its own model and the shared one, number by number."""

    parts: tuple[str, ...] = ("classifier",)  # what is mixed; all else begins as received
    eta: float = key(1.0, gt=0)  # the rate at which the shares move
    sample: float = key(0.8, gt=0, le=1)  # part of its images that a client tries mixtures on

    equation: ClassVar = "start = v + (w - v) s,  s <- s - eta (w - v) grad L_CE(start)"
    cost: ClassVar = Cost(copies=1, tuned=1, kept="weights + 4 * classes * (d + 1)")
    neutral: ClassVar = None
    keeps_model: ClassVar = True
    searched: ClassVar = ("eta",)

    def start(self, client: Client) -> Tensors:
        if not client.own:
            return {}
        twin = client.frozen(copies(client.received)).train()
        chosen = [name for name, _ in client.trainable() if within(name, self.parts)]
        if not chosen:
            raise ConfigError(f"method.parts = {list(self.parts)}: none of them is trained")
        lives = [twin.get_parameter(name).requires_grad_(True) for name in chosen]
        owns = [client.own[name] for name in chosen]
        ways = [client.received[n] - own for n, own in zip(chosen, owns, strict=True)]
        ones = [torch.ones_like(way) for way in ways]
        shares = [client.memory[name] for name in chosen] if client.memory else ones

        @torch.no_grad()
        def mix() -> None:
            for live, own, way, share in zip(lives, owns, ways, shares, strict=True):
                live.copy_(own + way * share)

        mix()
        losses: list[float] = []
        batches, passes = list(self._batches(client)), 1 if client.memory else AT_MOST
        unit = client.scaler.scale(torch.ones((), device=lives[0].device))
        for _ in range(passes if batches else 0):
            for batch in batches:
                with without_statistics(twin):
                    loss = F.cross_entropy(twin(batch.images).logits, batch.labels)
                slopes = torch.autograd.grad(client.scaler.scale(loss), lives)
                shares = [
                    (share - self.eta * slope / unit * way).clamp(0, 1)
                    for share, slope, way in zip(shares, slopes, ways, strict=True)
                ]
                mix()
            if passes > 1:  # to look at a loss is to wait for the device
                losses += read_numbers([loss.detach()])
                if len(losses) > LOOKS_BACK and pstdev(losses[-LOOKS_BACK:]) < SETTLED:
                    break
        client.tally.update(zip(chosen, shares, strict=True))
        return {name: live.detach() for name, live in zip(chosen, lives, strict=True)}

    def _batches(self, client: Client) -> Iterator[Batch]:
        """Of a random part of the images, without augmentation; none of a single image."""
        images, size = client.data.images, client.training.batch_size
        drawn = torch.randperm(len(images))[: int(self.sample * len(images))]
        for part in torch.split(on_device(drawn, images.labels.device), size):
            if len(part) > 1:
                pixels = client.data.preparation.clean(images.pixels.index_select(0, part))
                yield Batch(pixels, images.labels[part])

    def remember(self, client: Client) -> Tensors:
        return client.tally
