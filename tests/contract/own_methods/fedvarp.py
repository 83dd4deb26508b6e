"""FedVARP (Jhunjhunwala et al., UAI 2022): the server keeps each client's last change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

import dcfl


@dataclass(frozen=True)
class FedVARP(dcfl.Method):
    """For a client that is away, its last change stands in."""

    correction: float = 1.0

    neutral: ClassVar = {"correction": 0.0}
    keeps_replies: ClassVar = True
    any_aggregation: ClassVar = False

    def server_step(self, step: dcfl.ServerStep) -> dcfl.ServerStep:
        kept, direction = dict(step.kept), {}
        total = sum(step.shares)  # only ratios count
        for name, mean in step.direction.items():
            zero = torch.zeros_like(mean)
            last = [one for key, one in step.kept.items() if key.startswith(f"y/{name}/")]
            shift = sum(last, zero) / step.population
            for reply, share in zip(step.replies, step.shares, strict=True):
                key = f"y/{name}/{reply.client}"
                shift = shift - share / total * step.kept.get(key, zero)
                kept[key] = (reply.weights[name] - step.weights[name]).float()
            direction[name] = mean + self.correction * shift
        return replace(step, direction=direction, kept=kept)
