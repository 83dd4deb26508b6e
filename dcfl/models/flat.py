"""Models of feature vectors: a linear classifier, and one with a hidden layer before it.

They take images too, as the row of their numbers.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.models.layers import HeadedModel
from dcfl.models.output import Output


class LinearModel(HeadedModel):
    """The embedding is the input itself, unless there is a head."""

    def __init__(self, features: int, classes: int, head: str = "none") -> None:
        super().__init__()
        self.add_heads(features, classes, head)

    def forward(self, images: Tensor) -> Output:
        vectors = images.flatten(1)
        return self.classified(vectors, (vectors,))


class MLP(HeadedModel):
    """One hidden layer of 256 units, or of another width; the embedding is what leaves it."""

    def __init__(self, features: int, classes: int, head: str = "none", width: int = 0) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, width or 256)
        self.add_heads(width or 256, classes, head)

    def forward(self, images: Tensor) -> Output:
        before = self.hidden(images.flatten(1))
        return self.classified(F.relu(before), (before,))
