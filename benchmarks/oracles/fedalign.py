"""Runs mmendiet/FedAlign: its singular values, and its client for a few steps on a ResNet-8."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracles.problem import CLASSES, checkout, write
from dcfl.models import ResNet8

LR, EPOCHS, MU, WIDTH = 0.05, 2, 0.45, 0.25
EVERY = 397  # of 78,000 numbers, those that are compared


def network() -> ResNet8:
    model = ResNet8(channels=3, size=8, classes=CLASSES).double()
    drawn = torch.Generator().manual_seed(0)
    for live in model.parameters():
        numbers = torch.randn(live.shape, generator=drawn, dtype=torch.float64)
        live.data.copy_(0.1 * numbers if live.ndim > 1 else 0.5 + 0.1 * numbers)
    return model


def batches() -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 3, 8, 8, generator=drawn, dtype=torch.float64), torch.tensor(labels))
        for labels in ([0, 1, 2, 3, 0, 1], [3, 3, 2, 0, 0, 0])
    ]


def maps() -> tuple[Tensor, Tensor]:
    """Such as enter and leave a block, for five images."""
    drawn = torch.Generator().manual_seed(2)
    return (
        torch.rand(5, 8, 6, 6, generator=drawn, dtype=torch.float64),
        torch.rand(5, 12, 3, 3, generator=drawn, dtype=torch.float64),
    )


def sampled(tensors: Any) -> list[float]:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])[::EVERY].tolist()


def main() -> None:
    path = checkout()
    from methods import fedalign  # type: ignore[import-not-found]
    from models.resnet_fedalign import BasicBlock, ResNet  # type: ignore[import-not-found]

    steps: list[list[float]] = []

    class Recording(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            gradients = [live.grad for live in self.param_groups[0]["params"]]
            assert torch.cat([g.flatten() for g in gradients]).norm() < 10  # nothing is clipped
            steps.append(sampled(gradients))
            super().step()

    theirs = ResNet(BasicBlock, [1, 1, 1], CLASSES)
    for live, ours in zip(theirs.parameters(), network().parameters(), strict=True):
        live.data.copy_(ours.data)
    fedalign.current_process = lambda: SimpleNamespace(_identity=(0,))
    client = object.__new__(fedalign.Client)  # its own __init__ wants a GPU
    vars(client).update(
        device="cpu", model=theirs, criterion=torch.nn.CrossEntropyLoss(), width_range=[WIDTH, 1.0],
        optimizer=Recording(theirs.parameters(), lr=LR), train_dataloader=batches(), round=0,
        args=SimpleNamespace(epochs=EPOCHS, mu=MU), client_index=0, client_map=[0],
    )  # fmt: skip
    matrix = client.transmitting_matrix(*maps())
    values = client.top_eigenvalue(K=torch.bmm(matrix, matrix.transpose(2, 1)))
    client.train()
    write(
        "fedalign", "mmendiet/FedAlign", path,
        ["methods/fedalign.py", "models/resnet_fedalign.py", "models/slimmable_ops.py"],
        singular_values=values.flatten().tolist(), gradients=steps,
        weights=sampled(theirs.parameters()),
    )  # fmt: skip


if __name__ == "__main__":
    main()
