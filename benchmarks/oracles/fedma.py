"""Runs IBM/FedMA: its matching of one layer's neurons, where no new neurons pay.

Its solver of assignments is a compiled package; scipy's, which it names as the alternative, stands
in for it. Clients are taken in their own order instead of a random one.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.oracles.problem import checkout, write

CLIENTS, NEURONS, WIDTH = 4, 12, 7
SIGMA, SIGMA0, GAMMA = 1.0, 1.0, 1e-300
SWEEPS = [0, 1, 5]


def rows(noise: float) -> list[Tensor]:
    """The same neurons at each client, in another order and not quite the same."""
    drawn = torch.Generator().manual_seed(0)
    common = torch.randn(NEURONS, WIDTH, generator=drawn, dtype=torch.float64)
    return [
        common[torch.randperm(NEURONS, generator=drawn)]
        + noise * torch.randn(NEURONS, WIDTH, generator=drawn, dtype=torch.float64)
        for _ in range(CLIENTS)
    ]


def main() -> None:
    path = checkout()
    solver = SimpleNamespace(solve_dense=linear_sum_assignment)
    sys.modules["lapsolver"] = solver  # type: ignore[assignment]
    from matching.pfnm import match_layer  # type: ignore[import-not-found]

    np.random.permutation = np.arange  # type: ignore[assignment]
    cases = []
    for noise in (0.1, 1.0):
        for sweeps in SWEEPS:
            places, weights, precisions = match_layer(
                [one.numpy() for one in rows(noise)],
                [np.full(WIDTH, 1 / SIGMA)] * CLIENTS,
                np.zeros(WIDTH),
                np.full(WIDTH, 1 / SIGMA0),
                GAMMA,
                sweeps,
            )
            assert weights.shape == (NEURONS, WIDTH)  # no layer has grown
            cases.append(
                {
                    "noise": noise,
                    "sweeps": sweeps,
                    "orders": [np.argsort(one).tolist() for one in places],
                    "estimate": (weights / precisions).ravel().tolist(),
                }
            )
    write("fedma", "IBM/FedMA", path, ["matching/pfnm.py"], cases=cases)


if __name__ == "__main__":
    main()
