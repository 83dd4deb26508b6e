"""Run one benchmark job with pfl-research: `python pfl_job.py JOB_FOLDER PROCESSES`.

It runs in an environment of its own (pfl.txt, beside this file); of dcfl it uses the models alone.
Events go to stdout, one JSON object per line; everything else goes to stderr.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CORES = 2  # what a job may use: 1 rank of 2 threads, or 2 ranks of 1 thread

EVENTS = sys.stdout
sys.stdout = sys.stderr  # pfl reports its metrics on stdout


def emit(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, **fields}) + "\n"
    os.write(EVENTS.fileno(), line.encode())  # in one piece: the ranks share this pipe


def start_other_ranks(count: int) -> list[subprocess.Popen[bytes]]:
    """Make this process rank 0 of `count`, and start the others with the same command."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # pfl meets at the first address; of the others it only counts how many there are.
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"127.0.0.1:{port}"] * count)
    os.environ["PFL_WORKER_RANK"] = "0"
    return [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, "PFL_WORKER_RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=EVENTS,
        )
        for rank in range(1, count)
    ]


def train(folder: Path, job: dict[str, Any]) -> None:
    # Imported late: pfl joins the other ranks while it is imported.
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDatasetBase
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.internal.ops import pytorch_ops
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    from dcfl.models import LeNet, ResNet18

    ranks = pytorch_ops.distributed
    torch.set_num_threads(max(1, CORES // ranks.world_size))
    torch.manual_seed(job["seed"])  # every rank starts from the same weights
    np.random.seed(job["seed"])  # noqa: NPY002 - pfl draws its seeds from here

    pixels = np.load(folder / "pixels.npy", mmap_mode="r")
    labels = torch.from_numpy(np.load(folder / "labels.npy"))
    offsets = np.load(folder / "offsets.npy")
    indices = np.load(folder / "indices.npy")

    @functools.cache  # a client that comes back is not converted again
    def client_data(client: int) -> PyTorchTensorDataset:
        own = indices[offsets[client] : offsets[client + 1]].astype(np.int64)
        images = torch.from_numpy(pixels[own]).permute(0, 3, 1, 2).contiguous().float()
        # pfl's data sets go through the samples in a fixed order: it does not shuffle.
        return PyTorchTensorDataset((images.div_(255).sub_(0.5).div_(0.25), labels[own]))

    class Cohorts(FederatedDatasetBase):
        """The job's cohorts, dealt out in turn. pfl's samplers lose step on an odd cohort."""

        def __init__(self) -> None:
            super().__init__()
            self.rounds = iter(job["cohorts"])

        def __next__(self) -> Any:
            raise StopIteration  # one by one there is nobody: clients come by cohort

        def get_cohort(self, cohort_size: int) -> Iterator[tuple[PyTorchTensorDataset, int]]:
            for client in next(self.rounds)[ranks.global_rank :: ranks.world_size]:
                yield client_data(client), self._get_seed()

    class Classifier(torch.nn.Module):
        """The two methods that pfl asks of a module, and our counters."""

        def __init__(self) -> None:
            super().__init__()
            lenet = job["model"] == "lenet"
            self.network = LeNet(3, 32, 10) if lenet else ResNet18(3, 32, 10, "group")
            self.steps = 0
            self.round_steps = 0
            self.round_loss = torch.zeros(())

        def loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if self.steps == 0:
                emit("first-step", at=time.time())
            value = torch.nn.functional.cross_entropy(self.network(images).logits, targets)
            self.steps += 1
            self.round_steps += 1
            self.round_loss += value.detach()
            return value

        def metrics(self, *_: torch.Tensor) -> dict[str, Any]:
            return {}  # nothing is evaluated

    class Averaging(FederatedAveraging):
        """Without evaluation: whatever its frequency, pfl's own would evaluate in round 1."""

        def get_next_central_contexts(self, *arguments: Any, **named: Any) -> Any:
            contexts, model, metrics = super().get_next_central_contexts(*arguments, **named)
            if contexts is not None:
                contexts = tuple(dataclasses.replace(c, do_evaluation=False) for c in contexts)
            return contexts, model, metrics

    class Rounds(TrainingProcessCallback):
        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if ranks.global_rank == 0:
                emit("round", round=central_iteration + 1, at=time.time())
            if central_iteration + 1 < len(job["cohorts"]):  # the last round's loss is reported
                classifier.round_steps = 0
                classifier.round_loss.zero_()
            return False, Metrics()

    classifier = Classifier().train()
    model = PyTorchModel(
        classifier,
        functools.partial(
            torch.optim.SGD, momentum=job["momentum"], weight_decay=job["weight_decay"]
        ),
        # A step of length 1 along the mean difference: the mean of the clients' weights.
        torch.optim.SGD(classifier.parameters(), lr=1.0),
    )
    cohorts = Cohorts()
    Averaging().run(
        NNAlgorithmParams(
            central_num_iterations=len(job["cohorts"]),
            evaluation_frequency=len(job["cohorts"]),
            train_cohort_size=len(job["cohorts"][0]),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=cohorts, val_data=cohorts),
        model,
        NNTrainHyperParams(
            local_num_epochs=job["epochs"],
            local_learning_rate=job["lr"],
            local_batch_size=job["batch_size"],
        ),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )

    totals = [
        torch.tensor(float(classifier.steps)),
        torch.tensor(float(classifier.round_steps)),
        classifier.round_loss,
    ]
    steps, round_steps, round_loss = (float(t) for t in ranks.all_reduce(totals))
    if ranks.global_rank == 0:
        weights_sum = sum(float(p.detach().double().sum()) for p in classifier.parameters())
        emit("end", steps=int(steps), loss=round_loss / round_steps, weights_sum=weights_sum)
    if ranks.world_size > 1:  # pfl leaves the group open, and then a rank may abort as it exits
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def main() -> int:
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    others: list[subprocess.Popen[bytes]] = []
    # pfl cannot reduce a round in which a rank had no client.
    ranks = min(int(sys.argv[2]), *map(len, job["cohorts"]))
    if ranks > 1 and "PFL_WORKER_RANK" not in os.environ:
        others = start_other_ranks(ranks)
    try:
        train(folder, job)
        return max((process.wait(timeout=60) for process in others), default=0)
    finally:
        for process in others:
            process.kill()  # nothing happens to one that has ended


if __name__ == "__main__":
    sys.exit(main())
