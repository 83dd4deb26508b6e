"""LeNet: two 5x5 convolutions and three linear layers; 62 k parameters for 32x32 colour images.

LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998; with ReLU and
max-pooling, as the federated literature trains it on CIFAR.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.errors import require
from dcfl.models.layers import HeadedModel
from dcfl.models.output import Output


class LeNet(HeadedModel):
    """Has no normalisation layers; needs images of at least 16 pixels."""

    def __init__(self, channels: int, size: int, classes: int, head: str = "none") -> None:
        super().__init__()
        require(size >= 16, f'model.name = "lenet" needs images of 16 pixels or more, not {size}')
        self.convolution1 = nn.Conv2d(channels, 6, kernel_size=5)
        self.convolution2 = nn.Conv2d(6, 16, kernel_size=5)
        side = ((size - 4) // 2 - 4) // 2
        self.hidden1 = nn.Linear(16 * side * side, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.add_heads(84, classes, head)

    def forward(self, images: Tensor) -> Output:
        shallow = self.convolution1(images)
        # Pooling before the ReLU gives the same values with a quarter of the work.
        deep = self.convolution2(F.relu_(F.max_pool2d(shallow, 2)))
        maps = F.relu_(F.max_pool2d(deep, 2))
        hidden = F.relu_(self.hidden2(F.relu_(self.hidden1(maps.flatten(1)))))
        return self.classified(hidden, (shallow.mean(dim=(2, 3)), deep.mean(dim=(2, 3))))
