"""Whole runs of small federations, and what of them must be equal bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.data import Dataset, Partition
from dcfl.engines.engine import Connect
from dcfl.experiment import (
    AttackSettings,
    EngineSettings,
    Experiment,
    FederationSettings,
    OutputSettings,
)
from dcfl.local_training import LocalTraining
from dcfl.methods import Method
from dcfl.models import FeatureModel, Output
from dcfl.runs.connect import connect
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import ClientRow, Row
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from dcfl.server.compression import CompressionSettings
from tests import toys

SIZES = (5, 20, 3, 9, 16, 7)  # of the clients: unequal, the longest is not the first
COMPRESSIONS = {  # with draws, with a memory, with both
    "int8": CompressionSettings("int8", "float16"),
    "top-k": CompressionSettings("top-k", "int8", share=0.1),
    "random-k": CompressionSettings("random-k", "bfloat16", share=0.1),
}
TRAINING = LocalTraining(epochs=1, batch_size=8, lr=0.05)
TIMES = {"seconds", "evaluation_seconds"}


class Flat(FeatureModel):
    """A linear model of the toys' 64 pixels: quick to train, easy to derive from."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.classifier = dropout, nn.Linear(64, 4)

    def forward(self, images: Tensor) -> Output:
        pixels = F.dropout(images.flatten(1), self.dropout, self.training)
        return Output(self.classifier(pixels), pixels, (pixels,))


def federation(sizes: tuple[int, ...] = SIZES, test: int = 20) -> Dataset:
    """The toys, split among clients of these sizes."""
    dataset = toys.dataset(sum(sizes), test)
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return replace(dataset, partition=Partition.of_parts(list(parts)))


def training_for(method: str) -> LocalTraining:
    """The usual one; FedRep divides its epochs between classifier and body."""
    return replace(TRAINING, epochs=2) if method == "fedrep" else TRAINING


def made_ready(
    folder: Path,
    method: Method,
    workers: int,
    *,
    rounds: int = 3,
    evaluate_every: int = 1,
    participation: float = 1.0,
    personal: tuple[str, ...] = (),
    dataset: Dataset | None = None,
    model: FeatureModel | None = None,
    training: LocalTraining | None = None,
    server: ServerSettings | None = None,
    attack: AttackSettings | None = None,
    compression: CompressionSettings | None = None,
    connect: Connect = connect,
    keep_checkpoint: bool = True,
    **engine: Any,
) -> Run:
    experiment = Experiment(
        method=method,
        training=training or training_for(method.name),
        server=server or ServerSettings(),
        federation=FederationSettings(
            rounds, participation, evaluate_every=evaluate_every, personal=personal
        ),
        engine=EngineSettings(workers=workers, device="cpu", **engine),
        output=OutputSettings(str(folder), report=False, keep_checkpoint=keep_checkpoint),
        attack=attack or AttackSettings(),
        compression=compression or CompressionSettings(),
    )
    return Run(experiment, dataset or federation(), model, connect)


def trained(folder: Path, method: Method, workers: int, **settings: Any) -> Run:
    run = made_ready(folder, method, workers, **settings)
    for _ in run.rounds():
        pass
    return run


def bits(run: Run) -> dict[str, Any]:
    """All that a run says, but for how long it took."""
    recorded = RecordedRun.open(run.folder)
    return {
        "weights": run.result().summary["weights_sha256"],
        "rounds": [untimed(row) for row in recorded.rounds],
        "clients": [untimed_client(row) for row in recorded.clients],
    }


def untimed(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.to_json().items() if key not in TIMES}


def untimed_client(row: ClientRow) -> dict[str, Any]:
    metrics = {key: value for key, value in row.metrics.items() if key not in TIMES}
    return {**row.to_json(), "metrics": metrics}
