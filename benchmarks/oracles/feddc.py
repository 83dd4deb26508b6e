"""Runs gaoliang13/FedDC: its server and clients for four rounds.

It weights clients by their images, which has no effect if all have as many. So each client's
pictures are repeated until there are 126 of them: the mean over all of them stays what it is.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

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

COHORTS = [[0, 1], [0, 2], [1, 2, 3], [0, 3]]  # some come again, 3 joins late
ALPHA = 0.3
IMAGES = 126  # a multiple of all sizes


def main() -> None:
    path = checkout(
        "torchvision", "scipy", "matplotlib", "IPython", "sklearn", "torchsummary", "tensorboardX"
    )  # fmt: skip
    sys.modules["torch.utils.tensorboard"] = MagicMock()
    from utils_methods_FedDC import train_FedDC  # type: ignore[import-not-found]

    cohorts = iter(COHORTS)

    def drawn(size: int) -> Any:
        """Draws that let our cohorts take part."""
        return np.where(np.isin(np.arange(size), next(cohorts)), 0.0, 1.0)

    np.random.uniform = drawn  # type: ignore[assignment]
    data = [tensors_of(client) for client in range(len(LABELS))]
    repeated = [
        (images.repeat(IMAGES // len(labels), 1, 1, 1), labels.repeat(IMAGES // len(labels)))
        for images, labels in data
    ]
    everything = SimpleNamespace(
        dataset="mnist",
        name="digits",
        n_client=len(LABELS),
        clnt_x=[images.numpy() for images, _ in repeated],
        clnt_y=[labels.numpy() for _, labels in repeated],
        tst_x=data[0][0].numpy(),
        tst_y=data[0][1].numpy(),
    )
    server_models = train_FedDC(
        everything, act_prob=0.5, n_minibatch=STEPS, learning_rate=LR, batch_size=IMAGES,
        epoch=STEPS, com_amount=len(COHORTS), print_per=STEPS, weight_decay=0.0, model_func=Logits,
        init_model=Logits(0), alpha_coef=ALPHA, sch_step=1, sch_gamma=1, save_period=1, trial=True,
    )[1]  # fmt: skip
    write(
        "feddc", "gaoliang13/FedDC", path, ["utils_methods_FedDC.py", "utils_general.py"],
        cohorts=COHORTS, rounds=[numbers(dict(m.named_parameters())) for m in server_models],
    )  # fmt: skip


if __name__ == "__main__":
    main()
