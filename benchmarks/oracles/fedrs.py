"""Runs lxcnju/FedRepo: the clients and the server of its FedRS, for a step and three rounds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    LR,
    ROUNDS,
    STEPS,
    Tiny,
    checkout,
    numbers,
    tensors_of,
    write,
)

CASES = [{"alpha": 0.5}, {"alpha": 0.1}]
COHORTS = [[0, 1, 2, 3]] * ROUNDS


class Network(nn.Module):
    """As their code calls one: features and logits, by a classifier without a bias."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        tiny = Tiny(seed, bias=False)
        self.body, self.classifier = tiny.body, tiny.classifier

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.body(images.flatten(1)))
        return features, self.classifier(features)


class Loader:
    """All pictures in one batch; it has the `next` that PyTorch's iterators had until 1.12."""

    def __init__(self, client: int) -> None:
        self.batch = tensors_of(client)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        return self.batch

    next = __next__


class Tests:
    """What it tests on, which changes nothing."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter([tensors_of(0)])


def main() -> None:
    path = checkout("sklearn", "pandas", "torchvision")
    from algorithms.fedrs import FedRS

    def federation(alpha: float, steps: int) -> FedRS:
        theirs = FedRS.__new__(FedRS)
        theirs.args = SimpleNamespace(
            lr=LR, local_steps=steps, local_epochs=None, cuda=False, alpha=alpha,
            optimizer="SGD", momentum=0.0, weight_decay=0.0, max_grad_norm=1e9, n_classes=CLASSES,
        )  # fmt: skip
        return theirs

    counts = [torch.bincount(torch.tensor(labels), minlength=CLASSES).double() for labels in LABELS]

    def trained(theirs: FedRS, model: Network, client: int) -> tuple[Network, float]:
        share = counts[client] / counts[client].sum()
        got = theirs.update_local(1, copy.deepcopy(model), Loader(client), Tests(), share)
        return got[0], got[3]

    losses = []
    for case in CASES:
        start = Network(1)
        after, value = trained(federation(case["alpha"], steps=1), start, client=0)
        moved = dict(after.named_parameters())
        gradient = {name: (live - moved[name]) / LR for name, live in start.named_parameters()}
        losses.append((value, numbers(gradient)))

    model, rounds, theirs = Network(0), [], federation(CASES[0]["alpha"], STEPS)
    total = sum(len(labels) for labels in LABELS)
    for cohort in COHORTS:
        local = {client: trained(theirs, model, client)[0] for client in cohort}
        weights = {client: len(LABELS[client]) / total for client in cohort}
        theirs.update_global(1, model, local, weights)
        rounds.append(numbers(model.state_dict()))
    write(
        "fedrs", "lxcnju/FedRepo", path, ["algorithms/fedrs.py"],
        cases=CASES, losses=losses, cohorts=COHORTS, rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
