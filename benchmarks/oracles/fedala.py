"""Runs TsingZ0/FedALA: its clients and the means of its server."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

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

COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [0, 1, 2, 3]]
CASES = [
    {"parts": ["classifier"], "eta": 1.0, "sample": 1.0},
    {"parts": ["body", "classifier"], "eta": 0.3, "sample": 1.0},
]


def federation(clients: Any, server_class: Any, case: dict[str, Any]) -> dict[str, Any]:
    args = SimpleNamespace(
        model=Logits(), dataset="ours", device="cpu", num_classes=4, batch_size=64, eta=case["eta"],
        local_learning_rate=LR, local_steps=STEPS, rand_percent=100,
        layer_idx=2 * len(case["parts"]),
    )  # fmt: skip

    def read(dataset: str, client: int, is_train: bool = True) -> list[Any]:
        return list(zip(*tensors_of(client), strict=True))

    class Whole(clients.DataLoader):  # type: ignore[misc]
        """Theirs leaves out the last batch if it is short; here it is the only one."""

        def __init__(self, data: Any, size: int, **options: Any) -> None:
            super().__init__(data, len(data))

    vars(clients).update(read_client_data=read, DataLoader=Whole)
    held = [
        clients.clientALA(args, client, len(labels), len(labels))
        for client, labels in enumerate(LABELS)
    ]
    server, rounds = object.__new__(server_class), []
    server.global_model = Logits()
    for cohort in COHORTS:
        server.selected_clients = [held[client] for client in cohort]
        for client in server.selected_clients:
            client.local_initialization(server.global_model)
            client.train()
        server.receive_models()
        server.aggregate_parameters()
        rounds.append(numbers(server.global_model.state_dict()))
    own = [numbers(client.model.state_dict()) for client in held]
    names = list(Logits().inner.state_dict())[-2 * len(case["parts"]) :]
    shares = [numbers(dict(zip(names, c.ALA.weights, strict=True))) for c in held]
    return {"rounds": rounds, "own": own, "shares": shares}


def main() -> None:
    path = checkout("sklearn", "torchvision", "h5py")
    sys.path.insert(0, str(path / "system"))
    from flcore.clients import clientALA  # type: ignore[import-not-found]
    from flcore.servers.serverALA import FedALA  # type: ignore[import-not-found]

    files = ["utils/ALA.py", "flcore/clients/clientALA.py", "flcore/servers/serverALA.py"]
    write(
        "fedala", "TsingZ0/FedALA", path, [f"system/{file}" for file in files],
        cohorts=COHORTS, cases=CASES, runs=[federation(clientALA, FedALA, case) for case in CASES],
    )  # fmt: skip


if __name__ == "__main__":
    main()
