"""Runs Lee-Gihun/FedNTD: its loss on one batch, and its server and clients for three rounds."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    LR,
    ROUNDS,
    STEPS,
    Logits,
    batch_of,
    checkout,
    loader,
    numbers,
    value_and_gradient,
    write,
)

CASES = [{"mu": 1.0, "temperature": 1.0}, {"mu": 0.3, "temperature": 3.0}]
COHORTS = [[0, 1, 2, 3]] * ROUNDS


def main() -> None:
    path = checkout("wandb")
    from algorithms.fedntd import Server
    from algorithms.fedntd.criterion import NTD_Loss

    losses = []
    for case in CASES:
        model, batch = Logits(1), batch_of(0)
        loss = NTD_Loss(CLASSES, case["temperature"], case["mu"])
        received = Logits(0)(batch.images).detach()
        value = loss(model(batch.images), batch.labels, received)
        losses.append(value_and_gradient(value, dict(model.named_parameters())))

    class Recording(Server):
        """Measures nothing, and keeps the weights of each round."""

        def _update_and_evaluate(self, weights, results, round_idx, start):
            self.model.load_state_dict(weights)
            rounds.append(numbers(weights))

    rounds: list[dict[str, list[float]]] = []
    clients = range(len(LABELS))
    local = {c: {"train": loader(c), "datasize": len(LABELS[c]), "test": None} for c in clients}
    data = {"num_classes": CLASSES, "local": local, "global": {"test": loader(0)}}
    model = Logits(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    settings = SimpleNamespace(tau=3.0, beta=0.3)
    Recording(
        settings, model, data, optimizer,
        n_rounds=ROUNDS, sample_ratio=1.0, local_epochs=STEPS, device="cpu",
    ).run()  # fmt: skip
    files = ["algorithms/fedntd/criterion.py", "algorithms/fedntd/ClientTrainer.py"]
    write(
        "fedntd", "Lee-Gihun/FedNTD", path, [*files, "algorithms/BaseServer.py"],
        cases=CASES, losses=losses, cohorts=COHORTS, rounds=rounds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
