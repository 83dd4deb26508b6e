"""Runs ZexiLee/ICCV-2023-FedETF: its frame, its loss on one batch, and clients for three rounds."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    LR,
    STEPS,
    Tiny,
    checkout,
    loader,
    numbers,
    write,
)

REPOSITORY = "ZexiLee/ICCV-2023-FedETF"
STUBS = ("torchvision", "pyhessian", "six", "wandb")
COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3]]
SCALE = 3.0


class Net(nn.Module):
    """Our small network as theirs: the direction of the embedding, logits, and the embedding."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        from models_dict.proto_classifiers import Proto_Classifier  # type: ignore

        self.inner = Tiny(seed)
        self.scaling_train = nn.Parameter(torch.tensor(SCALE))
        torch.set_default_dtype(torch.float32)  # as it expects
        self.proto_classifier = Proto_Classifier(self.inner.classifier.in_features, CLASSES)
        torch.set_default_dtype(torch.float64)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output = self.inner(images)
        length = output.embedding.norm(dim=1, keepdim=True)
        return output.embedding / length, output.logits, output.embedding


def node(seed: int, client: int, lr: float) -> SimpleNamespace:
    from nodes import Node  # type: ignore[import-not-found]

    model = Net(seed)
    holder = SimpleNamespace(num_classes=CLASSES)
    return SimpleNamespace(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        local_data=loader(client),
        sample_per_class=Node.generate_sample_per_class(holder, loader(client)),
    )


def body(model: Net) -> dict[str, list[float]]:
    named = {name: live for name, live in model.named_parameters() if "classifier" not in name}
    return numbers(named)


def main() -> None:
    path = checkout(*STUBS)
    from dcfl.methods.zoo.fedetf import equiangular_frame

    torch.Tensor.cuda = lambda self, *_: self  # type: ignore[assignment]
    from client_funct import Client_update, client_fedetf  # type: ignore[import-not-found]
    from server_funct import Server_update  # type: ignore[import-not-found]

    def drawn(size: tuple[int, int]) -> np.ndarray:
        """What our frame is made of."""
        seeded = torch.Generator().manual_seed(0)
        return torch.rand(size, generator=seeded, dtype=torch.float64).numpy()

    np.random.random = drawn  # type: ignore[assignment]
    one = node(1, 0, lr=0.0)
    frame = one.model.proto_classifier.proto.clone()
    ours = equiangular_frame(*frame.shape)
    one.model.proto_classifier.load_proto(ours)
    args = SimpleNamespace(client_method="fedetf", server_method="fedavg", E=STEPS)
    value = client_fedetf(args, one)
    gradients = {name: live.grad for name, live in one.model.named_parameters()}
    gradients = {n: g for n, g in gradients.items() if g is not None and "classifier" not in n}
    nodes = {client: node(0, client, LR) for client in range(len(LABELS))}
    server = node(0, 0, LR)
    server.model.proto_classifier.load_proto(ours)
    rounds = []
    for cohort in COHORTS:
        nodes, _ = Client_update(args, nodes, server, cohort)
        shares = [len(labels) for labels in LABELS]
        server = Server_update(args, server, nodes, cohort, shares)
        rounds.append(copy.deepcopy(body(server.model)))
    write(
        "fedetf", REPOSITORY, path,
        ["models_dict/proto_classifiers.py", "client_funct.py", "server_funct.py", "nodes.py"],
        frame=frame.flatten().tolist(), loss=[value, numbers(gradients)],
        cohorts=COHORTS, rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
