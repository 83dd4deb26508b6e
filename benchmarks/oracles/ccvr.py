"""Runs the CCVR of ZexiLee/ICCV-2023-FedETF: a client's moments, and the server's training.

The authors of CCVR have released no code. This one draws with another spread than the paper's where
several clients hold a class, so its draws are replaced by ours. What is compared is what it makes
of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.oracles.fedetf import REPOSITORY, STUBS, Net
from benchmarks.oracles.problem import CLASSES, LABELS, checkout, loader, numbers, write
from dcfl.messages import Tensors
from dcfl.methods.zoo.ccvr import CCVR

SAMPLES = 10  # of each class, as there


def moments() -> Tensors:
    """Any that could be: of 30 features of each class."""
    drawn = torch.Generator().manual_seed(5)
    z = torch.randn(CLASSES, 30, 5, generator=drawn, dtype=torch.float64)
    z = z + torch.arange(CLASSES)[:, None, None]
    return {
        "counts": torch.full((CLASSES,), 30.0, dtype=torch.float64),
        "sums": z.sum(dim=1),
        "products": z.mT @ z,
    }


def main() -> None:
    path = checkout(*STUBS)
    torch.Tensor.cuda = lambda self, *_: self  # type: ignore[assignment]
    from client_funct import client_ccvr_compute_feature_meanvar  # type: ignore
    from server_funct import ccvr  # type: ignore[import-not-found]

    clients: list[dict[str, dict[str, list[float]]]] = []
    protos: dict[int, Any] = {}
    for client in range(len(LABELS)):
        node = SimpleNamespace(model=Net(0), num_classes=CLASSES, local_data=loader(client))
        client_ccvr_compute_feature_meanvar(None, node)
        protos[client] = node.feature_meanvar
        clients.append(
            {
                kind: {str(label): values.tolist() for label, values in found.items()}
                for kind, found in node.feature_meanvar.items()
            }
        )
    features, _ = CCVR(samples=SAMPLES).drawn(moments(), seed=0)
    drawn = iter(features)
    torch.normal = lambda *_: next(drawn)  # type: ignore[assignment]
    model = Net(0)
    model.linear_head = model.inner.classifier.float()  # as its features are
    server = SimpleNamespace(model=model, num_classes=CLASSES, base_key=set())
    ccvr(SimpleNamespace(node_num=len(LABELS)), server, protos)
    write(
        "ccvr", REPOSITORY, path, ["client_funct.py", "server_funct.py"],
        clients=clients, classifier=numbers(dict(model.linear_head.named_parameters())),
    )  # fmt: skip


if __name__ == "__main__":
    main()
