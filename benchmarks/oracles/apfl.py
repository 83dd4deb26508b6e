"""Runs MLOPTPSU/FedTorch, by the authors of APFL: its training of a federation in one process, with
a fixed alpha.

Their code mixes the outputs of both models, the paper their weights. On a network of one linear
layer the two are the same, so that is what is trained.
"""

from __future__ import annotations

import copy
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.oracles.problem import (
    LABELS,
    LR,
    STEPS,
    Straight,
    checkout,
    loader,
    numbers,
    write,
)

COHORTS = [[0, 1, 2, 3], [0, 2], [1, 2, 3]]
ALPHAS = [0.25, 0.5]


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Straight()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(images).logits
        return logits


def main() -> None:
    path = checkout(
        "torchvision", "tensorflow", "sklearn", "h5py", "PIL", "mpi4py", "pandas", "six"
    )
    from fedtorch.comms.trainings.federated.centered import apfl  # type: ignore[import-not-found]
    from fedtorch.components.optimizers.sgd import SGD  # type: ignore[import-not-found]

    cohorts, steps = iter(()), count()
    named = {
        "set_online_clients_centered": lambda args: next(cohorts),
        "is_sync_fed": lambda args: (next(steps) + 1) % STEPS == 0,
        "adjust_learning_rate": lambda *given: LR,
        "load_data_batch": lambda args, images, labels, tracker: (images, labels),
        "get_current_local_step": lambda args: 0,
    }
    for name in ("get_current_epoch", "do_validate_centered", "log_validation_centered", "log"):
        named[name] = lambda *given, **options: None
    for name in ("logging_load_time", "logging_sync_time", "logging_globally"):
        named[name] = lambda *given, **options: None
    vars(apfl).update(named, define_local_training_tracker=dict)

    def node(client: int, alpha: float) -> Any:
        args = SimpleNamespace(
            in_momentum=False, out_momentum=False, fed_personal=False, fed_adaptive_alpha=False,
            fed_personal_alpha=alpha, lr_scale_at_sync=1.0, federated_type="apfl", quantized=False,
            graph=SimpleNamespace(n_nodes=len(LABELS)), local_index=0, local_data_seen=0,
            rounds_comm=0, num_comms=1, global_index=0, quant_error=0.0, debug=False,
            fed_personal_test=False, device="cpu",
        )  # fmt: skip
        model, personal = Plain(), Plain()
        for one in (model, personal):
            for parameter in one.parameters():
                parameter.grad = torch.zeros_like(parameter)

        def sgd(one: Plain) -> Any:
            return SGD(one.parameters(), lr=LR, args=args)

        return SimpleNamespace(
            args=args, model=model, model_personal=personal, optimizer=sgd(model),
            optimizer_personal=sgd(personal), criterion=torch.nn.CrossEntropyLoss(), metrics=(1,),
            scheduler=None, train_loader=loader(client), val_loader=None,
            zero_grad=lambda: [p.grad.zero_() for p in model.parameters()],
            reset_tracker=lambda tracker: None, local_val_tracker={}, global_val_tracker={},
        )  # fmt: skip

    runs = []
    for alpha in ALPHAS:
        cohorts = iter(COHORTS)
        server, rounds = node(0, alpha), []
        server.optimizer.zero_grad = server.zero_grad  # torch of today would make it None
        clients = [node(client, alpha) for client in range(len(LABELS))]
        for _ in COHORTS:
            apfl.train_and_validate_apfl_centered(clients, server)
            rounds.append(numbers(copy.deepcopy(server.model.state_dict())))
        own = [numbers(client.model_personal.state_dict()) for client in clients]
        runs.append({"rounds": rounds, "own": own})
    files = [
        "fedtorch/comms/trainings/federated/centered/apfl.py",
        "fedtorch/comms/utils/eval.py",
        "fedtorch/comms/algorithms/federated/centered/fedavg.py",
    ]
    write("apfl", "MLOPTPSU/FedTorch", path, files, alphas=ALPHAS, cohorts=COHORTS, runs=runs)


if __name__ == "__main__":
    main()
