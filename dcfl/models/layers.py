"""Building blocks of the models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

Norm = Literal["batch", "group", "batch-nostats"]
Head = Literal["none", "mlp256"]

NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": partial(nn.GroupNorm, 2),  # two groups, as in FedRCL and FedACG
    # Uses batch statistics in evaluation too, as in FedSOL: no buffers to average, but an image's
    # output depends on the rest of its batch (dcfl/data/client_data.py mixes the classes).
    "batch-nostats": partial(nn.BatchNorm2d, track_running_stats=False),
}


def convolution(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def projection(features: int, head: Head) -> tuple[nn.Module, int]:
    """The module between the pooled features and the classifier, and its output size."""
    if head == "none":
        return nn.Identity(), features
    mlp = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 256))
    return mlp, 256
