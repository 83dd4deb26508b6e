"""A job on dcfl's engine: `python -m benchmarks.bench.ours FOLDER WORKERS [METHOD
[PRECISION]]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.bench.floor import say
from benchmarks.bench.jobs import Job, read_job
from dcfl import local_training
from dcfl.data import DataSettings
from dcfl.experiment import (
    EngineSettings,
    Experiment,
    FederationSettings,
    OutputSettings,
    Precision,
)
from dcfl.local_training import LocalTraining
from dcfl.methods import METHODS
from dcfl.models import ModelSettings
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run


def experiment(
    job: Job, workers: int, folder: str, method: str = "fedavg", precision: Precision = "float32"
) -> Experiment:
    """What clients remember, if the method has them remember something, is on disk."""
    return Experiment(
        data=DataSettings(clients=job.clients, crop=0, flip=False),
        model=ModelSettings(job.model, norm="group" if job.model == "resnet18" else "batch"),
        training=LocalTraining(
            job.epochs,
            job.batch_size,
            job.lr,
            lr_decay=1.0,
            momentum=job.momentum,
            weight_decay=job.weight_decay,
            max_grad_norm=0.0,
        ),
        method=METHODS[method](),
        federation=FederationSettings(job.rounds, job.cohort / job.clients, job.seed),
        engine=EngineSettings(workers=workers, device="cpu", precision=precision, memory_budget=0),
        output=OutputSettings(folder, report=False, keep_checkpoint=False),
    )


def _announce_the_first_step() -> None:
    """From whichever process takes it."""
    descend = local_training._descend

    def announced(*args: Any) -> Tensor:
        local_training._descend = descend
        say("first-step")
        return descend(*args)

    local_training._descend = announced  # type: ignore[assignment]


def main() -> None:
    job, dataset = read_job(Path(sys.argv[1]))
    more: list[Any] = sys.argv[3:]
    _announce_the_first_step()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(experiment(job, int(sys.argv[2]), folder, *more), dataset)
        for row in run.rounds():
            # A row may come late: its evaluation overlaps with the next round.
            say("round", round=row.round, seconds=row.seconds)
        weights = run.result().weights
        steps = sum(client.num_steps for client in RecordedRun.open(run.folder).clients)
    total = sum(float(tensor.double().sum()) for tensor in weights.values())
    say("end", steps=steps, loss=row.train_loss, weights_sum=total)


if __name__ == "__main__":
    main()
