"""Runs litian96/fair_flearn: q-FedAvg's server for four rounds, with clients that train our net.

Its own networks are TensorFlow's of 2019, so a client here does the same with ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.oracles.problem import LABELS, LR, STEPS, Tiny, checkout, tensors_of, write

COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [0, 3]]
QS = [1.0, 0.5, 3.0]


class Local:
    """What the server asks of a client: weights, the loss on all its pictures, training."""

    def __init__(self, client: int) -> None:
        self.model = Tiny(0)
        self.images, self.labels = tensors_of(client)

    def set_params(self, arrays: list[Any]) -> None:
        for live, array in zip(self.model.parameters(), arrays, strict=True):
            live.data.copy_(torch.as_tensor(array))

    def get_params(self) -> list[Any]:
        return [live.detach().numpy().copy() for live in self.model.parameters()]

    def _loss(self) -> torch.Tensor:
        return F.cross_entropy(self.model(self.images).logits, self.labels)

    def get_loss(self) -> float:
        return float(self._loss().detach())

    def solve_inner(self, num_epochs: int, batch_size: int) -> tuple[Any, Any]:
        for _ in range(num_epochs):
            lives = list(self.model.parameters())
            for live, own in zip(lives, torch.autograd.grad(self._loss(), lives), strict=True):
                live.data -= LR * own
        return (len(self.labels), self.get_params()), None


def main() -> None:
    path = checkout("tensorflow", "tqdm")
    from flearn.trainers.qffedavg import Server  # type: ignore[import-not-found]

    class Recording(Server):  # type: ignore[misc]
        """Takes our cohorts, measures nothing, and keeps the weights of each round."""

        def select_clients(self, round: int, **_: Any) -> tuple[Any, Any]:
            return None, np.array([self.clients[k] for k in COHORTS[round]], dtype=object)

        def aggregate2(self, *given: Any) -> list[Any]:
            self.latest_model = super().aggregate2(*given)
            arrays = zip(dict(Tiny().named_parameters()), self.latest_model, strict=True)
            rounds.append({name: np.ravel(array).tolist() for name, array in arrays})
            return self.latest_model

        def test(self) -> tuple[Any, Any]:
            return [1], [1]

        train_error = validate = test

        def __del__(self) -> None: ...

    runs = []
    for q in QS:
        rounds: list[dict[str, list[float]]] = []
        server = object.__new__(Recording)  # its own __init__ builds TensorFlow's graph
        vars(server).update(
            clients=[Local(client) for client in range(len(LABELS))], clients_per_round=4, q=q,
            latest_model=Local(0).get_params(), learning_rate=LR, num_epochs=STEPS, batch_size=64,
            num_rounds=len(COHORTS) - 1, eval_every=10**6, log_interval=10**6,
        )  # fmt: skip
        server.train()
        runs.append(rounds)
    files = ["flearn/trainers/qffedavg.py", "flearn/trainers/fedbase.py"]
    write("q-fedavg", "litian96/fair_flearn", path, files, cohorts=COHORTS, qs=QS, runs=runs)


if __name__ == "__main__":
    main()
