"""Building blocks of the models."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from torch import Tensor, nn

from dcfl.errors import ConfigError
from dcfl.models.output import FeatureModel, Output
from dcfl.system.wording import printable

Norm = Literal["batch", "group", "batch-nostats"]
HEADS = re.compile(r"none|(mlp|side)([1-9]\d{0,3})")  # with their width

NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": partial(nn.GroupNorm, 2),  # two groups, as in FedRCL and FedACG
    # Uses batch statistics in evaluation too, as in FedSOL: no buffers to average, but an image's
    # output depends on the rest of its batch (dcfl/data/client_data.py mixes the classes).
    "batch-nostats": partial(nn.BatchNorm2d, track_running_stats=False),
}


def require_head(head: str) -> None:
    if HEADS.fullmatch(head) is None:
        raise ConfigError(
            f'model.head = "{printable(head)}": use "none", "mlp256" (before the classifier) or '
            f'"side256" (beside it), or another width than 256'
        )


class HeadedModel(FeatureModel):
    """A model whose pooled features may have a projection head before or beside the classifier."""

    def add_heads(self, width: int, classes: int, head: str) -> None:
        """Call it last in `__init__`, with the width of the pooled features."""
        kind, wide = head.rstrip("0123456789"), head.lstrip("abcdefghijklmnopqrstuvwxyz")
        before = kind == "mlp"
        self.head = perceptron(width, int(wide)) if before else nn.Identity()
        self.classifier = nn.Linear(int(wide) if before else width, classes)
        # Made last: the other initial weights are the same with and without it.
        self.side = perceptron(width, int(wide)) if kind == "side" else None

    def classified(self, pooled: Tensor, stages: Sequence[Tensor]) -> Output:
        embedding = self.head(pooled)
        projection = self.side(pooled) if self.side is not None else None
        return Output(self.classifier(embedding), embedding, tuple(stages), projection)


def perceptron(features: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))
