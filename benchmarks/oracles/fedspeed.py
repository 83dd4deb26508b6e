"""Runs woodenchild95/FL-Simulator: FedSpeed's server and clients for four rounds."""

from __future__ import annotations

from pathlib import Path
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

REPOSITORY = "woodenchild95/FL-Simulator"
COHORTS = [[0, 1], [0, 2], [1, 2, 3], [0, 3]]  # some come again, 3 joins late
LR_DECAY = 0.9
CASE = {"alpha": 0.3, "rho": 0.2}


def simulate(server: str, **settings: float) -> tuple[Path, list[dict[str, list[float]]]]:
    """The server's weights after each round, by the simulator's own loop."""
    path = checkout("torchvision", "scipy", "matplotlib")
    import server as servers  # type: ignore[import-not-found]
    import utils  # type: ignore[import-not-found]

    rounds: list[dict[str, list[float]]] = []

    class Recording(getattr(servers, server)):  # type: ignore[misc]
        """Takes our cohorts, measures nothing, and keeps the weights of each round."""

        def _activate_clients_(self, t: int) -> list[int]:
            self.local_iteration = STEPS  # as its formula has it for clients of a single batch
            return COHORTS[t]

        def _test_(self, t: int, selected_clients: Any) -> None:
            rounds.append(numbers(dict(self.server_model.named_parameters())))

        def _save_results_(self) -> None: ...

        def _summary_(self) -> None: ...

    data = [tensors_of(client) for client in range(len(LABELS))]
    model = Logits(0)
    Recording(
        device="cpu",
        model_func=Logits,
        init_model=model,
        init_par_list=utils.get_mdl_params(model),
        datasets=SimpleNamespace(
            client_x=[images.numpy() for images, _ in data],
            client_y=[labels.numpy() for _, labels in data],
        ),
        method=server,
        args=SimpleNamespace(
            method=server,
            total_client=len(LABELS),
            comm_rounds=len(COHORTS),
            local_epochs=STEPS,
            local_learning_rate=LR,
            global_learning_rate=1.0,
            lr_decay=LR_DECAY,
            batchsize=64,
            weight_decay=0.0,
            dataset="mnist",
            use_RI=False,
            **settings,
        ),
    ).train()
    return path, rounds


def main() -> None:
    path, rounds = simulate("FedSpeed", lamb=CASE["alpha"], rho=CASE["rho"])
    files = ["client/fedspeed.py", "optimizer/ESAM.py", "server/FedSpeed.py", "server/server.py"]
    write("fedspeed", REPOSITORY, path, files, cohorts=COHORTS, rounds=rounds)


if __name__ == "__main__":
    main()
