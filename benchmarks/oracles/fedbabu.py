"""Runs jhoon-oh/FedBABU: the training of one client, with momentum and weight decay."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from benchmarks.oracles.problem import LR, STEPS, Tiny, checkout, numbers, tensors_of, write

MOMENTUM, WEIGHT_DECAY = 0.9, 0.01


class Named(nn.Module):
    """Our net with the names by which their code tells the head."""

    def __init__(self) -> None:
        super().__init__()
        ours = Tiny(0)
        self.body, self.linear = ours.body, ours.classifier

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(torch.tanh(self.body(images.flatten(1))))
        return logits


def main() -> None:
    path = checkout("tqdm")
    from models.Update import LocalUpdate  # type: ignore[import-not-found]

    images, labels = tensors_of(1)
    args = SimpleNamespace(
        local_bs=64, momentum=MOMENTUM, wd=WEIGHT_DECAY, local_ep=STEPS, device="cpu"
    )
    data = torch.utils.data.TensorDataset(images, labels)
    trainer = LocalUpdate(args, data, range(len(labels)))
    weights, _ = trainer.train(Named(), body_lr=LR, head_lr=0.0)
    ours = {name.replace("linear", "classifier"): tensor for name, tensor in weights.items()}
    write(
        "fedbabu", "jhoon-oh/FedBABU", path, ["models/Update.py"],
        client=1, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, weights=numbers(ours),
    )  # fmt: skip


if __name__ == "__main__":
    main()
