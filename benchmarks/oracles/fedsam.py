"""Runs debcaldarola/fedsam: its SAM and ASAM clients, and its server, for three rounds."""

from __future__ import annotations

import sys

import torch

from benchmarks.oracles.problem import (
    LABELS,
    LR,
    ROUNDS,
    STEPS,
    Logits,
    checkout,
    numbers,
    tensors_of,
    write,
)

CASES = {"fedsam": {"rho": 0.4}, "fedasam": {"rho": 0.7, "eta": 0.2}}
COHORTS = [[0, 1, 2, 3]] * ROUNDS
FILES = ["models/clients/minimizers.py", "models/servers/fedavg_server.py"]


class Network(Logits):
    size, device = 0, "cpu"  # which its server asks for


def main() -> None:
    path = checkout("tqdm")
    sys.path.insert(0, str(path / "models"))
    from clients.asam_client import ASAMClient
    from clients.sam_client import SAMClient
    from servers.fedavg_server import Server

    for (name, case), kind in zip(CASES.items(), (SAMClient, ASAMClient), strict=True):

        def client(number: int, model: Network, kind: type = kind, case: dict = case) -> object:
            data = torch.utils.data.TensorDataset(*tensors_of(number))
            return kind(
                0, number, LR, 0.0, len(LABELS[number]), 0.0, data, data, model,
                case["rho"], case.get("eta", 0.0), device="cpu",
            )  # fmt: skip

        one = Network(1)
        start = {name: live.detach().clone() for name, live in one.named_parameters()}
        alone = client(0, one)
        alone.train(num_epochs=1)
        gradient = {name: (start[name] - live) / LR for name, live in one.named_parameters()}
        loss = (float(alone.losses[0]), numbers(gradient))

        model, rounds = Network(0), []
        server = Server(model)
        clients = [client(number, model) for number in range(len(LABELS))]
        for cohort in COHORTS:
            server.train_model(STEPS, clients=[clients[number] for number in cohort])
            server.update_model()
            rounds.append(numbers(server.model))
        own = f"models/clients/{name.removeprefix('fed')}_client.py"
        write(
            name, "debcaldarola/fedsam", path, [own, *FILES],
            cases=[case], losses=[loss], cohorts=COHORTS, rounds=rounds,
        )  # fmt: skip


if __name__ == "__main__":
    main()
