"""Runs jichan3751/ifca: its training on MNIST, with our clients and network."""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.oracles.problem import (
    LABELS,
    LR,
    STEPS,
    Logits,
    Tiny,
    checkout,
    numbers,
    tensors_of,
    write,
)
from dcfl.methods.personal.ifca import begun
from dcfl.tensors import snapshot

CLUSTERS, ROUNDS = 3, 4


def main() -> None:
    path = checkout("torchvision", "matplotlib")
    sys.path.insert(0, str(path / "mnist"))
    import train_cluster_mnist as theirs  # type: ignore[import-not-found]

    first: list[Any] = [Logits() for _ in range(CLUSTERS)]
    for number, model in enumerate(first):
        model.inner.load_state_dict(begun(snapshot(Tiny(0)), number))
    training = object.__new__(theirs.TrainMNISTCluster)
    clients = {"cluster_assign": [0] * len(LABELS)}
    training.config = {"m": len(LABELS), "p": CLUSTERS, "tau": STEPS, "m_test": 0}
    training.dataset, training.models = {"train": clients, "test": clients}, first
    training.criterion = theirs.torch.nn.CrossEntropyLoss()
    training.load_data = lambda client, train=True: tensors_of(client)
    rounds, chosen = [], []
    for _ in range(ROUNDS):
        picked = training.test(train=True)["cluster_assign"]
        chosen.append([int(number) for number in picked])
        training.train(picked, lr=LR)
        rounds.append([numbers(model.state_dict()) for model in training.models])
    write(
        "ifca", "jichan3751/ifca", path, ["mnist/train_cluster_mnist.py"],
        clusters=CLUSTERS, chosen=chosen, rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
