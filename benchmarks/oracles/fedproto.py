"""Runs yuetan031/FedProto: the training of a client, and what becomes of the prototypes."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest.mock import Mock

from torch import Tensor

from benchmarks.oracles.problem import (
    LABELS,
    LR,
    STEPS,
    Tiny,
    checkout,
    numbers,
    tensors_of,
    write,
)

MUS, ROUNDS, MOMENTUM = [1.0, 0.1], 3, 0.5


class Both(Tiny):
    """Log-probabilities and embedding, as theirs returns them."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output = super().forward(images)
        return output.logits.log_softmax(dim=1), output.embedding


def main() -> None:
    path = checkout("torchvision", "matplotlib", "tensorboardX", "seaborn", "sklearn")
    sys.path.insert(0, str(path / "lib"))
    for name in ("models", "sampling"):
        sys.modules[name] = Mock()
    from update import LocalUpdate  # type: ignore[import-not-found]
    from utils import agg_func, proto_aggregation  # type: ignore[import-not-found]

    runs = []
    for mu in MUS:
        models, prototypes, rounds = [Both() for _ in LABELS], [], []
        for number in range(ROUNDS):
            local = {}
            for client, model in enumerate(models):
                images, labels = tensors_of(client)
                args = SimpleNamespace(
                    device="cpu", optimizer="sgd", lr=LR, train_ep=STEPS, ld=mu, num_classes=4,
                    local_bs=len(labels), verbose=0,
                )  # fmt: skip
                data = list(zip(images, labels, strict=True))
                trainer = LocalUpdate(args, data, range(len(labels)))
                *_, found = trainer.update_weights_het(args, client, prototypes, model, number)
                local[client] = agg_func(found)
            prototypes = proto_aggregation(local)
            rounds.append({str(c): prototypes[c][0].detach().tolist() for c in sorted(prototypes)})
        own = [numbers(model.state_dict()) for model in models]
        runs.append({"prototypes": rounds, "own": own})
    write(
        "fedproto", "yuetan031/FedProto", path, ["lib/update.py", "lib/utils.py"],
        mus=MUS, momentum=MOMENTUM, runs=runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
