"""Runs lgcollins/FedRep: the training of one client by FedRep, FedPer and LG-FedAvg.

Its loop over rounds is a script that loads data; what that does between rounds is here.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest.mock import Mock

import torch
from torch import Tensor, nn

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

COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3]]
BODY, HEAD = ["body.weight", "body.bias"], ["classifier.weight", "classifier.bias"]
SHARED = {"fedrep": BODY, "fedper": BODY, "lg": HEAD}


class Plain(Tiny):
    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(images).logits


def trained(updates: type, alg: str, client: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    images, labels = tensors_of(client)
    args = SimpleNamespace(
        alg=alg, dataset="ours", local_bs=64, local_ep=STEPS, local_rep_ep=1, device="cpu",
        local_updates=10**6,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(images, labels)
    net: nn.Module = Plain()
    net.load_state_dict(weights)
    trainer = updates(args=args, dataset=data, idxs=range(len(labels)))
    after = trainer.train(net, w_glob_keys=SHARED[alg], lr=LR)[0]
    return {name: tensor.clone() for name, tensor in after.items()}


def main() -> None:
    path = checkout("nltk", "torchvision", "sklearn")
    for name in ("models.test", "models.language_utils"):  # the first cannot be parsed any more
        sys.modules[name] = Mock()
    from models.Update import LocalUpdate  # type: ignore[import-not-found]

    runs = {}
    for alg, shared in SHARED.items():
        weights = Plain().state_dict()
        own = dict.fromkeys(range(len(LABELS)), weights)
        rounds = []
        for cohort in COHORTS:
            for client in cohort:
                begin = {**own[client], **{name: weights[name] for name in shared}}
                own[client] = trained(LocalUpdate, alg, client, begin)
            images = sum(len(LABELS[client]) for client in cohort)
            weights = {
                name: sum(own[k][name] * (len(LABELS[k]) / images) for k in cohort)
                for name in shared
            }
            rounds.append(numbers(weights))
        rest = [name for name in own[0] if name not in shared]
        kept = [numbers({name: own[client][name] for name in rest}) for client in own]
        runs[alg] = {"rounds": rounds, "own": kept}
    write(
        "fedrep", "lgcollins/FedRep", path, ["models/Update.py", "main_fedrep.py"],
        cohorts=COHORTS, momentum=0.5, weight_decay=1e-4, runs=runs,
    )  # fmt: skip


if __name__ == "__main__":
    main()
