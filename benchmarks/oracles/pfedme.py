"""Runs CharlieDinh/pFedMe: users and server of pFedMe, and users of Per-FedAvg, also there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

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

COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3]]
CASES = [{"lam": 5.0, "steps": 5, "lr": 0.15}, {"lam": 1.0, "steps": 2, "lr": 0.3}]
RATES = [0.15, 0.5]  # of w
INNER = 0.2  # Per-FedAvg's first step


def data_of(client: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(*tensors_of(client), strict=True))


def recorded(user: Any) -> Any:
    """After training, theirs loads the shared model into the very tensors of the own one."""
    step = user.optimizer.step

    def recording(local: Any) -> Any:
        moved = step(local)
        user.theta = [tensor.detach().clone() for tensor in moved[0]]
        return moved

    user.optimizer.step = recording
    return user


def of_pfedme(
    user_class: type, server_class: Any, case: dict[str, float], rate: float
) -> dict[str, Any]:
    users = [
        recorded(
            user_class(
                "cpu", client, data_of(client), data_of(client), (Logits(), "Mclr_CrossEntropy"),
                64, rate, 1.0, case["lam"], STEPS, "pFedMe", case["steps"], case["lr"],
            )
        )
        for client in range(len(LABELS))
    ]  # fmt: skip
    server, rounds = SimpleNamespace(model=Logits(), users=users, beta=1.0), []
    server.add_parameters = lambda user, ratio: server_class.add_parameters(server, user, ratio)
    for cohort in COHORTS:
        server_class.send_parameters(server)
        server.selected_users = [users[client] for client in cohort]
        for user in server.selected_users:
            user.train(STEPS)
        server_class.persionalized_aggregate_parameters(server)
        rounds.append(numbers(server.model.state_dict()))
    names = list(Logits().state_dict())
    own = [numbers(dict(zip(names, user.theta, strict=True))) for user in users]
    return {"rounds": rounds, "own": own}


def of_per_fedavg(user_class: type, client: int) -> dict[str, list[float]]:
    """Batches of half of the images, so that the two of an iteration are all."""
    data = data_of(client)
    user = user_class(
        "cpu", client, data, data, (Logits(), "Mclr_CrossEntropy"), -(-len(data) // 2),
        INNER, LR, 0, STEPS, "PerAvg", len(LABELS), len(LABELS),
    )  # fmt: skip
    user.train(STEPS)
    return numbers(user.model.state_dict())


def main() -> None:
    path = checkout("h5py", "torchvision", "matplotlib", "tqdm")
    from FLAlgorithms.servers.serverbase import Server  # type: ignore[import-not-found]
    from FLAlgorithms.users.userperavg import UserPerAvg  # type: ignore[import-not-found]
    from FLAlgorithms.users.userpFedMe import UserpFedMe  # type: ignore[import-not-found]

    common = ["FLAlgorithms/users/userbase.py", "FLAlgorithms/optimizers/fedoptimizer.py"]
    write(
        "pfedme", "CharlieDinh/pFedMe", path,
        ["FLAlgorithms/users/userpFedMe.py", *common, "FLAlgorithms/servers/serverbase.py"],
        cohorts=COHORTS, cases=CASES, rates=RATES,
        runs=[of_pfedme(UserpFedMe, Server, *case) for case in zip(CASES, RATES, strict=True)],
    )  # fmt: skip
    write(
        "per-fedavg", "CharlieDinh/pFedMe", path, ["FLAlgorithms/users/userperavg.py", *common],
        lr=INNER, weights=[of_per_fedavg(UserPerAvg, client) for client in range(len(LABELS))],
    )  # fmt: skip


if __name__ == "__main__":
    main()
