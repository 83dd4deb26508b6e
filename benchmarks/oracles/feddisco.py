"""Runs MediaBrain-SJTU/FedDisco: its weights of clients, and its FedAvg with them."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    LR,
    STEPS,
    Logits,
    checkout,
    loader,
    numbers,
    write,
)

CASES = [{"a": 0.5, "b": 0.1}, {"a": 0.9, "b": 0.0}, {"a": 0.2, "b": 0.3}]
COHORTS = [[0, 1, 2, 3], [1, 3], [0, 2, 3], [0, 1]]


class Network(Logits):
    def forward(self, images: Tensor) -> tuple[None, None, Tensor]:
        return None, None, super().forward(images)


def main() -> None:
    path = checkout("torchvision", "sklearn", "PIL")
    from algorithms.fedavg import fedavg_alg
    from disco import disco_weight_adjusting, get_distribution_difference

    counts = np.array([np.bincount(labels, minlength=CLASSES) for labels in LABELS])
    uniform = np.ones(CLASSES) / CLASSES

    def shares(cohort: list[int], a: float, b: float) -> list[float]:
        usual = np.array([len(LABELS[client]) for client in cohort])
        difference = get_distribution_difference(counts, cohort, "kl", uniform)
        return [float(p) for p in disco_weight_adjusting(usual / usual.sum(), difference, a, b)]

    weights = [[shares(cohort, **case) for cohort in COHORTS] for case in CASES]

    rounds: list[dict[str, list[float]]] = []

    class Recording(Network):
        def cuda(self) -> Recording:  # called when a round's weights are in place
            rounds.append(numbers(self.state_dict()))
            return self

    torch.nn.Module.cuda = torch.Tensor.cuda = lambda self: self  # there is no GPU here
    os.chdir(tempfile.mkdtemp())
    args = SimpleNamespace(
        alg="fedavg", epochs=STEPS, lr=LR, optimizer="sgd", reg=0.0, sample_fraction=0.5,
        server_momentum=0, disco=1, measure_difference="kl", disco_a=CASES[0]["a"],
        disco_b=CASES[0]["b"], modeldir="models/", save_model=0,
    )  # fmt: skip
    clients = range(len(LABELS))
    with redirect_stdout(StringIO()):
        fedavg_alg(
            args, len(COHORTS), {client: Network(0) for client in clients}, Recording(0), COHORTS,
            {client: LABELS[client] for client in clients}, [loader(client) for client in clients],
            loader(0), counts, None, "cpu", uniform, logging.getLogger("oracle"),
        )  # fmt: skip
    write(
        "feddisco", "MediaBrain-SJTU/FedDisco", path, ["disco.py", "algorithms/fedavg.py"],
        cases=CASES, weights=weights, training={"momentum": 0.9}, cohorts=COHORTS, rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
