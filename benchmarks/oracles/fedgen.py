"""Runs zhuangdizhu/FedGen: its clients, and the training of its generator.

Both get our draws: of noise and of classes, in the order in which theirs asks for them. The losses
of features are made a column, as the weights of clients are that they are multiplied with: as they
are, every loss meets every weight.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    LR,
    STEPS,
    Logits,
    checkout,
    client_data,
    numbers,
    write,
)
from dcfl.methods.zoo.fedgen import FedGen
from dcfl.seeding import derived_seed

COHORTS = [[0, 1, 2, 3], [0, 3], [1, 2], [0, 1, 2, 3]]
SETTINGS = {"noise": 3, "hidden": 6, "samples": 8, "steps": 10, "lr": 0.01}
CASES: list[dict[str, float]] = [
    {"weight": 1.0, "likeness": 0.5, "diversity": 1.0},
    {"weight": 3.0, "likeness": 0.1, "diversity": 0.0},
]


class Net(Logits):
    """As their networks are called: with pictures, or with features and -1."""

    def forward(  # type: ignore[override]
        self, x: Tensor, start_layer_idx: int = 0, logit: bool = False
    ) -> dict[str, Tensor]:
        logits = self.inner.classifier(x) if start_layer_idx else super().forward(x)
        return {"output": logits.log_softmax(dim=1), "logit": logits}


class Column(torch.nn.Module):
    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(scores, labels, reduction="none")[:, None]


def draw_classes(among: Any, count: int) -> Any:
    places = torch.rand(count, dtype=torch.float32)  # in whatever precision the network is
    return np.array(among)[(places * len(among)).floor().long().numpy()]


def batches(client: int, number: int) -> list[tuple[Tensor, Tensor]]:
    """All pictures, in our order: each of them has noise of its own."""
    torch.set_default_dtype(torch.float32)  # in which pictures are prepared
    ours = client_data(client).training_batches(STEPS, 64, 0, number, client, second_view=False)
    made = [(batch.images.double(), batch.labels) for batch in ours]
    torch.set_default_dtype(torch.float64)
    return made


def federation(theirs: Any, case: dict[str, float]) -> dict[str, Any]:
    """`theirs`: the classes of their files."""
    method = FedGen(**SETTINGS, **case)  # type: ignore[arg-type]
    first = method.first(torch.zeros(CLASSES, 5, dtype=torch.float64)).state_dict()
    generator = theirs.Generator("ours")
    generator.crossentropy_loss = Column()
    names = {"fc_layers.0": "body", "fc_layers.1": "norm", "representation_layer": "head"}
    pairs = {f"{a}.{end}": f"{b}.{end}" for a, b in names.items() for end in ("weight", "bias")}
    generator.load_state_dict({name: first[ours] for name, ours in pairs.items()}, strict=False)
    users = []
    for labels in LABELS:
        user = object.__new__(theirs.User)
        vars(user).update(
            model=Net(), local_model=[*Net().parameters()], unique_labels=CLASSES, label_counts={},
            K=1, local_epochs=STEPS, generative_model=generator, latent_layer_idx=-1,
            available_labels=list(range(CLASSES)), train_samples=len(labels),
            gen_batch_size=SETTINGS["samples"], batch_size=SETTINGS["samples"],
            generative_alpha=case["weight"], generative_beta=case["likeness"],
            lr_scheduler=SimpleNamespace(step=lambda number: None),
        )  # fmt: skip
        user.init_loss_fn()
        user.optimizer = theirs.SGD(user.model.parameters(), lr=LR)
        users.append(user)
    server = object.__new__(theirs.Server)
    vars(server).update(
        model=Net(), users=users, unique_labels=CLASSES, generative_model=generator,
        n_teacher_iters=5, ensemble_alpha=1, ensemble_beta=0, ensemble_eta=case["diversity"],
    )  # fmt: skip
    server.generative_optimizer = torch.optim.Adam(
        generator.parameters(), lr=SETTINGS["lr"], weight_decay=0.01
    )
    server.generative_lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(
        server.generative_optimizer, gamma=0.98
    )
    rounds, generators = [], []
    for number, cohort in enumerate(COHORTS):
        server.send_parameters()
        server.selected_users = [users[client] for client in cohort]
        for client in cohort:
            torch.default_generator.manual_seed(derived_seed(0, number + 1, client, "model"))
            seed = int(torch.randint(2**62, ()))
            steps = iter(enumerate(batches(client, number + 1)))

            def batch(count_labels: bool, seed: int = seed, steps: Any = steps) -> dict[str, Any]:
                step, (images, labels) = next(steps)
                torch.default_generator.manual_seed(seed + step)
                found, counts = labels.unique(return_counts=True)
                return {"X": images, "y": labels, "labels": found.numpy(), "counts": counts.numpy()}

            users[client].get_next_train_batch = batch
            users[client].train(number, regularization=number > 0)
        torch.default_generator.manual_seed(number + 1)
        server.train_generator(SETTINGS["samples"], epoches=SETTINGS["steps"] // 5)
        server.aggregate_parameters()
        rounds.append(numbers(server.model.state_dict()))
        state = generator.state_dict()
        generators.append(numbers({ours: state[name] for name, ours in pairs.items()}))
    assert not any(math.isnan(value) for found in generators for value in found["head.bias"])
    return {"rounds": rounds, "generators": generators}


def main() -> None:
    path = checkout("torchvision", "h5py", "matplotlib", "tqdm")
    from FLAlgorithms.optimizers.fedoptimizer import pFedIBOptimizer  # type: ignore
    from FLAlgorithms.servers import serverpFedGen  # type: ignore[import-not-found]
    from FLAlgorithms.trainmodel import generator  # type: ignore[import-not-found]
    from FLAlgorithms.users.userpFedGen import UserpFedGen  # type: ignore[import-not-found]

    generator.GENERATORCONFIGS["ours"] = (SETTINGS["hidden"], 5, 1, CLASSES, SETTINGS["noise"])
    serverpFedGen.np.random.choice = draw_classes
    theirs = SimpleNamespace(
        Generator=generator.Generator, User=UserpFedGen, Server=serverpFedGen.FedGen,
        SGD=pFedIBOptimizer,
    )  # fmt: skip
    files = ["users/userpFedGen.py", "servers/serverpFedGen.py", "trainmodel/generator.py"]
    write(
        "fedgen", "zhuangdizhu/FedGen", path, [f"FLAlgorithms/{file}" for file in files],
        cohorts=COHORTS, settings=SETTINGS, cases=CASES,
        runs=[federation(theirs, case) for case in CASES],
    )  # fmt: skip


if __name__ == "__main__":
    main()
