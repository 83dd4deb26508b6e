"""Runs JianXu95/FedPAC: its clients, and what its server makes for each of them.

cvxpy, which solves their quadratic problem to five digits or so, is replaced by a search of all
supports, which is exact; torch.eig, which torch no longer has, by its successor.
"""

from __future__ import annotations

import sys
from itertools import combinations
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.oracles.problem import CLASSES, LABELS, Tiny, checkout, loader, numbers, write

COHORTS = [[0, 1, 2, 3], [0, 1], [1, 2, 3], [0, 1, 2, 3]]
MUS, LR, EPOCHS = [1.0, 0.1], 0.1, 3  # the rate of the classifier is fixed in their code
MOMENTUM, DECAY = 0.5, 0.0005  # so are these


class Both(Tiny):
    """Embedding and logits, as theirs returns them."""

    classifier_weight_keys: ClassVar = ["classifier.weight", "classifier.bias"]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output = super().forward(images)
        return output.embedding, output.logits


class Shares:
    """Of which none is below 0 and the sum is 1."""

    def __init__(self, count: int) -> None:
        self.value = np.zeros(count)

    def __ge__(self, bound: object) -> bool:
        return True


class Problem:
    def __init__(self, objective: tuple[Shares, Any], constraints: object) -> None:
        self._shares, self._matrix = objective

    def solve(self) -> None:
        places, best = range(len(self._matrix)), np.inf
        for size in range(1, len(places) + 1):
            for support in map(list, combinations(places, size)):
                found = np.linalg.solve(self._matrix[np.ix_(support, support)], np.ones(size))
                shares = np.zeros(len(places))
                shares[support] = found / found.sum()
                value = shares @ self._matrix @ shares
                if shares.min() >= 0 and value < best:
                    best, self._shares.value = value, shares


def federation(theirs: Any, client_class: Any, mu: float) -> dict[str, Any]:
    args = SimpleNamespace(
        num_classes=CLASSES, device="cpu", lr=LR, lam=mu, num_users=len(LABELS), epochs=99,
        local_epoch=EPOCHS - 1, agg_g=1, frac=1.0,
    )  # fmt: skip
    own: dict[int, Any] = {}
    mixes: list[Any] = []
    solve = theirs.get_head_agg_weight

    class Recorded(client_class):  # type: ignore[misc]
        def local_training(self, *args: Any, **options: Any) -> Any:
            result = super().local_training(*args, **options)
            own[self.idx] = numbers(self.local_model.state_dict())
            return result

    def recorded(*args: Any) -> Any:
        found = solve(*args)
        mixes.append([[float(share) for share in mix] for mix in found])
        return found

    theirs.get_head_agg_weight = recorded
    clients = [Recorded(k, args, loader(k), loader(k), Both()) for k in range(len(LABELS))]
    rounds = []
    for number, cohort in enumerate(COHORTS):
        args.frac = len(cohort) / len(LABELS)
        theirs.np.random.choice = lambda *_, cohort=cohort, **__: cohort
        theirs.train_round_fedpac(args, Both(), clients, number)
        states = [numbers(client.local_model.state_dict()) for client in clients]
        heads = [{n: s[n] for n in s if n in Both.classifier_weight_keys} for s in states]
        body = {name: states[0][name] for name in states[0] if name not in heads[0]}
        prototypes = {str(c): found.tolist() for c, found in clients[0].global_protos.items()}
        rounds.append({"features": body, "classifiers": heads, "prototypes": prototypes})
    theirs.get_head_agg_weight = solve
    return {"rounds": rounds, "mixes": mixes, "own": [own[k] for k in range(len(LABELS))]}


def main() -> None:
    path = checkout()
    solver: Any = ModuleType("cvxpy")
    solver.Variable, solver.Problem = Shares, Problem
    solver.quad_form = lambda shares, matrix: (shares, matrix)
    solver.Minimize, solver.sum = (lambda objective: objective), sum_of
    sys.modules["cvxpy"] = solver
    torch.eig = eigenvalues  # type: ignore[attr-defined]
    import running as theirs  # type: ignore[import-not-found]
    from methods.fedpac import LocalUpdate_FedPAC  # type: ignore[import-not-found]

    write(
        "fedpac", "JianXu95/FedPAC", path, ["methods/fedpac.py", "running.py", "tools.py"],
        cohorts=COHORTS, mus=MUS, lr=LR, epochs=EPOCHS, momentum=MOMENTUM, weight_decay=DECAY,
        runs=[federation(theirs, LocalUpdate_FedPAC, mu) for mu in MUS],
    )  # fmt: skip


def sum_of(shares: Shares) -> float:
    return 1.0


def eigenvalues(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return torch.stack([values, torch.zeros_like(values)], dim=1), vectors


if __name__ == "__main__":
    main()
