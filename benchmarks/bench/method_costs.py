"""What a round of each method costs compared with FedAvg: all in turn, on one core."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import torch

from dcfl.client import LocalTraining
from dcfl.data import Augmentation, Dataset, DataSettings, Images, Partition
from dcfl.data.augment import Preparation
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.methods import METHODS
from dcfl.models import ModelSettings
from dcfl.runs.run import Run

Seconds = dict[str, list[float]]
IMAGES = {"lenet": 512, "cnn": 512, "resnet18": 64}  # of the client, for a round of seconds


def method_seconds(
    model: str, methods: Sequence[str], repeats: int, show: Callable[[str], None]
) -> Seconds:
    """Seconds of `repeats` rounds of each method: five epochs of one client with the paper's
    settings. The round before them gives the client its memory and the prototypes."""
    dataset = _noise(IMAGES[model])
    seconds: Seconds = {name: [] for name in methods}
    with ExitStack() as folders:
        rounds = {}
        for name in methods:
            folder = folders.enter_context(tempfile.TemporaryDirectory())
            rounds[name] = Run(_experiment(name, model, repeats, folder), dataset).rounds()
        for repeat in range(repeats + 1):
            for name, rows in rounds.items():
                row = next(rows)
                if repeat:
                    seconds[name].append(row.seconds - row.evaluation_seconds)
            show(f"{repeat}/{repeats}")
        for rows in rounds.values():
            rows.close()
    return seconds


def _experiment(method: str, model: str, repeats: int, folder: str) -> Experiment:
    return Experiment(
        data=DataSettings(clients=1),
        model=ModelSettings(model),
        training=LocalTraining(),
        method=METHODS[method](),
        federation=FederationSettings(rounds=repeats + 2, participation=1.0),
        engine=EngineSettings(workers=1, device="cpu"),
        output=OutputSettings(folder, report=False, keep_checkpoint=False),
    )


def _noise(images: int) -> Dataset:
    """Ten classes of random images of 32 pixels, all of one client; cropped and flipped."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 32, 32, 3), generator=generator, dtype=torch.uint8)
    labels = torch.arange(images) % 10
    return Dataset(
        "noise",
        Images(pixels, labels),
        Images(pixels[:10], labels[:10]),
        tuple("0123456789"),
        Preparation((0.5,) * 3, (0.25,) * 3, Augmentation(crop=4, flip=True)),
        Partition.of_parts([np.arange(images)]),
    )
