"""What the tests of single methods share: a batch, and the comparison with an equation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dcfl.client import Batch

LABELS = [0, 0, 1, 2, 0, 1, 3]  # 2 and 3 are without positives
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def batch(labels: Sequence[int] = LABELS) -> Batch:
    torch.manual_seed(1)
    images = torch.randn(len(labels), 1, 8, 8, dtype=torch.float64)
    return Batch(images, torch.tensor(list(labels)))


def cosine(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).sum() / ((u * u).sum().sqrt() * (v * v).sum().sqrt())


def require_same(loss: Tensor, expected: Tensor, model: nn.Module) -> None:
    """The value, and the gradient by every parameter that is trained."""
    parameters = [live for live in model.parameters() if live.requires_grad]
    torch.testing.assert_close(loss, expected, **EXACT)
    torch.testing.assert_close(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), **EXACT
    )
