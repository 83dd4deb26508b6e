"""Runs Divyansh03/FedExP: its main program for five rounds, on our problem in place of EMNIST."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks.oracles.problem import LABELS, Logits, checkout, numbers, tensors_of, write

ROUNDS = 5
# What it sets for EMNIST; the rate decays before round 1 too.
TRAINING = {
    "lr": 0.1 * 0.998, "lr_decay": 0.998, "epochs": 20, "batch_size": 64, "momentum": 0.0,
    "weight_decay": 1e-4, "max_grad_norm": 10.0,
}  # fmt: skip


def staying(move: Callable[..., Any]) -> Callable[..., Any]:
    """Without a GPU, what is sent to it stays."""
    return lambda self, *to, **how: self if to == ("cuda",) else move(self, *to, **how)


def main() -> None:
    path = checkout("matplotlib", "torchvision")
    clients = range(len(LABELS))
    data = [TensorDataset(*tensors_of(client)) for client in clients]
    for name, content in (
        ("util_data", {"get_dataset": lambda *_: (data, data[0])}),
        ("util_models", {"get_model": lambda *_: Logits(0)}),
    ):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)

    rounds: list[dict[str, list[float]]] = []
    put = torch.nn.utils.vector_to_parameters

    def recording(vector: torch.Tensor, parameters: Any) -> None:
        """Called twice a round: for the server's weights, and for the mean of two rounds' that it
        scores."""
        own = list(parameters)
        put(vector, own)
        names = [name for name, _ in Logits(0).named_parameters()]
        rounds.append(numbers(dict(zip(names, own, strict=True))))

    torch.nn.utils.vector_to_parameters = recording
    os.chdir(tempfile.mkdtemp())
    options = {
        "seed": 0, "algorithm": "fedexp", "dataset": "EMNIST", "model": "CNN", "alpha": 0.3,
        "num_clients": len(clients), "num_participating_clients": len(clients),
        "num_rounds": ROUNDS - 1,
    }  # fmt: skip
    sys.argv[1:] = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    for owner in (torch.Tensor, torch.nn.Module):
        owner.to = staying(owner.to)
    with redirect_stdout(StringIO()):
        runpy.run_path(str(path / "main.py"))
    write(
        "fedexp", "Divyansh03/FedExP", path, ["main.py", "util_general.py"],
        cases=[{"epsilon": 0.1, "decay": 0.998}], training=TRAINING,
        cohorts=[list(clients)] * ROUNDS, rounds=rounds[::2],
    )  # fmt: skip


if __name__ == "__main__":
    main()
