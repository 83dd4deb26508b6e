"""FedETF: a classifier that is never trained, with all classes at the same angle.

Li et al., "No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic
and Fixed Classifier", ICCV 2023. With K classes, embeddings of length d >= K and n_k images of
class k at this client (1 if it has none):

    M = sqrt(K / (K - 1)) * P (I - 1/K 1 1^T)       P: orthonormal columns [d, K], the same for all
    L = mean_i -log softmax( scale * M^T z_i/||z_i|| + log n )_{y_i}

The columns of M form a simplex equiangular tight frame: unit vectors with the cosine -1/(K - 1).

The classifier's weight is M^T. The scale is trained, and its bias holds it, equal in all classes,
which changes no prediction: sum(bias) / sqrt(K) moves as a parameter of its own would.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.methods.method import Method, Objective
from dcfl.methods.zoo.fedlc import class_counts
from dcfl.settings import key
from dcfl.system.transfers import on_device


@dataclass(frozen=True)
class FedETF(Method):
    """A classifier that is never trained, with all classes at the same angle."""

    scale: float = key(10.0, gt=0)  # of the cosines, at the beginning; it is trained

    equation: ClassVar = (
        "L = mean_i -log softmax( scale * M^T z_i/||z_i|| + log n )_{y_i},  M: fixed, equiangular"
    )
    neutral: ClassVar = None
    any_optimizer: ClassVar = False  # momentum would carry the classifier past its frame

    def objective(self, client: Client) -> Objective:
        frame, bias = self._fixed_classifier(client)
        classes = frame.shape[1]
        prior = class_counts(client).clamp(min=1).to(frame.dtype).log()

        def loss(batch: Batch) -> Tensor:
            directions = F.normalize(client.model(batch.images).embedding, dim=1)
            scale = self.scale if bias is None else bias.sum() / sqrt(classes)
            return F.cross_entropy(scale * (directions @ frame) + prior, batch.labels)

        return loss

    def _fixed_classifier(self, client: Client) -> tuple[Tensor, Tensor | None]:
        """M and the bias, after the classifier, whose weights are random in the first round, has
        been set to M."""
        layer = getattr(client.model, "classifier", None)
        if not isinstance(layer, nn.Linear) or not layer.weight.requires_grad:
            raise ConfigError("fedetf needs a linear layer called `classifier` that is not frozen")
        classes, width = layer.weight.shape
        if width < classes:
            raise ConfigError(
                f"fedetf needs embeddings of at least {classes} numbers, one for each class, not "
                f'{width}: use a wider network, or a head such as model.head = "mlp256"'
            )
        fixed = equiangular_frame(width, classes).to(layer.weight.dtype)
        frame = on_device(fixed, layer.weight.device)
        with torch.no_grad():
            begun = torch.isclose(layer.weight, frame.T, atol=1e-3).all()
            layer.weight.copy_(frame.T)
            if layer.bias is not None:
                layer.bias.copy_(torch.where(begun, layer.bias, self.scale / sqrt(classes)))
        return frame, layer.bias


@cache
def equiangular_frame(width: int, classes: int) -> Tensor:
    """M [d, K] in float64, the same on all machines."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(width, classes, generator=generator, dtype=torch.float64)
    orthonormal: Tensor = torch.linalg.qr(drawn).Q
    centred = orthonormal - orthonormal.mean(dim=1, keepdim=True)
    return sqrt(classes / (classes - 1)) * centred
