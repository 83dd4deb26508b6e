"""Runs alpemreacar/FedDyn: its whole federation for five rounds, with some clients in each.

Its alpha is divided by a client's share of all images. Here every picture is repeated until all
clients have the same number of them, which changes no mean.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace

import numpy as np

from benchmarks.oracles.problem import (
    LABELS,
    LR,
    STEPS,
    Logits,
    checkout,
    numbers,
    tensors_of,
    write,
)

EACH, ALPHA, PARTICIPATION, ROUNDS = 126, 0.3, 0.6, 5
FILES = ["utils_general.py", "utils_methods.py"]


def main() -> None:
    path = checkout("matplotlib", "torchvision", "LEAF")
    from utils_methods import train_FedDyn

    def repeated(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array] * (EACH // len(array)))

    pairs = [tensors_of(client) for client in range(len(LABELS))]
    images = [repeated(x.flatten(1).numpy()) for x, _ in pairs]
    labels = [repeated(y.numpy())[:, None] for _, y in pairs]
    data = SimpleNamespace(
        n_client=len(LABELS), clnt_x=images, clnt_y=labels, tst_x=images[0], tst_y=labels[0],
        name="problem", dataset="synt",
    )  # fmt: skip
    cohorts = []
    for number in range(ROUNDS):  # as it draws them
        draw = np.random.RandomState(number).uniform(size=len(LABELS))
        cohorts.append(np.flatnonzero(draw <= PARTICIPATION).tolist())
    os.chdir(tempfile.mkdtemp())
    os.makedirs("Output/problem")
    with redirect_stdout(StringIO()):
        trained = train_FedDyn(
            data, PARTICIPATION, LR, EACH, STEPS, ROUNDS, 1000, 0.0, Logits, Logits(0), ALPHA,
            save_period=1, lr_decay_per_round=1.0,
        )  # fmt: skip
    rounds = [numbers(model.state_dict()) for model in trained[-1]]
    write(
        "feddyn", "alpemreacar/FedDyn", path, FILES,
        cases=[{"alpha": ALPHA}], losses=[], cohorts=cohorts, rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
