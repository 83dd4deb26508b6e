"""Runs litian96/ditto: its server for three rounds, with clients that have our net.

Its own networks are TensorFlow's of 2019, so a client here does the same with ours.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.oracles.problem import LABELS, LR, STEPS, Tiny, checkout, tensors_of, write

COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3]]
MUS = [0.1, 1.0]


class Shared:
    """The one network that all clients of their code use in turn."""

    def __init__(self) -> None:
        self.model = Tiny(0)

    def set_params(self, arrays: list[Any]) -> None:
        for live, array in zip(self.model.parameters(), arrays, strict=True):
            live.data.copy_(torch.as_tensor(array))

    def get_params(self) -> list[Any]:
        return [live.detach().numpy().copy() for live in self.model.parameters()]


class Local:
    """What the server asks of a client: a step on its pictures, and their loss."""

    train_data = None

    def __init__(self, client: int, shared: Shared) -> None:
        self.model = shared.model
        self.images, self.labels = tensors_of(client)

    def _loss(self) -> torch.Tensor:
        return F.cross_entropy(self.model(self.images).logits, self.labels)

    def get_loss(self) -> float:
        return float(self._loss().detach())

    def solve_sgd(self, batch: object) -> tuple[Any, Any, Any]:
        lives = list(self.model.parameters())
        gradients = torch.autograd.grad(self._loss(), lives)
        for live, own in zip(lives, gradients, strict=True):
            live.data -= LR * own
        return None, (len(self.labels), [own.numpy() for own in gradients]), None


def named(arrays: list[Any]) -> dict[str, list[float]]:
    names = dict(Tiny().named_parameters())
    return {name: array.ravel().tolist() for name, array in zip(names, arrays, strict=True)}


def main() -> None:
    path = checkout("tensorflow", "tqdm", "PIL", "matplotlib")
    from flearn.trainers_MTL import ditto  # type: ignore[import-not-found]

    ditto.gen_batch = lambda *given: repeat(None)

    class Recording(ditto.Server):  # type: ignore[misc]
        """Takes our cohorts, and keeps the weights of each round."""

        def select_clients(self, round: int, num_clients: int) -> tuple[Any, Any]:
            return COHORTS[round], [self.clients[k] for k in COHORTS[round]]

        def simple_average(self, parameters: list[Any]) -> list[Any]:
            mean: list[Any] = super().simple_average(parameters)
            after = [old + new for old, new in zip(self.global_model, mean, strict=True)]
            rounds.append(named(after))
            owns.append([named(own) for own in self.local_models])
            return mean

        def __del__(self) -> None: ...

    runs = []
    for mu in MUS:
        rounds: list[dict[str, list[float]]] = []
        owns: list[list[dict[str, list[float]]]] = []
        server, shared = object.__new__(Recording), Shared()
        vars(server).update(
            clients=[Local(client, shared) for client in range(len(LABELS))], client_model=shared,
            local_models=[shared.get_params() for _ in LABELS], global_model=shared.get_params(),
            learning_rate=LR, lam=mu, local_iters=STEPS, num_rounds=len(COHORTS) - 1, q=0, seed=0,
            clients_per_round=4, num_corrupted=0, batch_size=64, eval_every=10**6, dataset="ours",
            dynamic_lam=False, gradient_clipping=False, median=False, k_norm=False, krum=False,
            mkrum=False, boosting=False, random_updates=False,
        )  # fmt: skip
        server.train()
        runs.append({"rounds": rounds, "own": owns[-1]})
    files = ["flearn/trainers_MTL/ditto.py", "flearn/trainers_MTL/fedbase.py"]
    write("ditto", "litian96/ditto", path, files, mus=MUS, cohorts=COHORTS, runs=runs)


if __name__ == "__main__":
    main()
