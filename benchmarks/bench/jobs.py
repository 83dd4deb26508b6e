"""The jobs that all contenders are timed on, as folders that any program can read.

job.json     model, epochs, batch size, optimiser, and the clients of every round
pixels.npy   uint8 [n, 32, 32, 3]        labels.npy   int64 [n]
offsets.npy, indices.npy                 client k owns indices[offsets[k] : offsets[k + 1]]
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from dcfl.data import Augmentation, Dataset, Images, Partition
from dcfl.data.augment import Preparation
from dcfl.federation import sample_cohort


@dataclass(frozen=True)
class Job:
    about: str
    model: Literal["lenet", "resnet18"]  # resnet18 with GroupNorm
    clients: int
    images: int  # of each client
    cohort: int
    epochs: int
    batch_size: int
    rounds: int  # the first is not timed

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0


JOBS = {
    "J1": Job("LeNet, 10 of 100 clients, 5 epochs of 448 images", "lenet", 100, 448, 10, 5, 64, 4),
    "J2": Job("ResNet-18, 2 of 100 clients, 2 steps each", "resnet18", 100, 128, 2, 1, 64, 2),
    "J3": Job("LeNet, 50 of 1,000 clients of 50 images", "lenet", 1000, 50, 50, 1, 10, 6),
}


def tiny(job: Job) -> Job:
    """A few seconds of the job, to try the machinery: 80 images of a LeNet, 8 of a ResNet-18."""
    images = 20 if job.model == "lenet" else 2
    return replace(job, clients=10, images=images, cohort=2, epochs=1, rounds=2)


def write_job(job: Job, folder: Path) -> None:
    """Random images: how long a step takes does not depend on what it sees."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(job.seed)
    count = job.clients * job.images
    np.save(folder / "pixels.npy", rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))
    np.save(folder / "labels.npy", rng.integers(0, 10, count))
    np.save(folder / "offsets.npy", np.arange(job.clients + 1) * job.images)
    np.save(folder / "indices.npy", rng.permutation(count).astype(np.int32))
    share, rounds = job.cohort / job.clients, range(1, job.rounds + 1)
    cohorts = [sample_cohort(job.clients, share, job.seed, round) for round in rounds]
    text = json.dumps({**asdict(job), "cohorts": cohorts})
    (folder / "job.json").write_text(text, encoding="utf-8")


def read_job(folder: Path) -> tuple[Job, Dataset]:
    """The job and its data, with its split; ten images to evaluate on, since only dcfl must."""
    described = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    del described["cohorts"]
    pixels = torch.from_numpy(np.load(folder / "pixels.npy", mmap_mode="c"))
    labels = torch.from_numpy(np.load(folder / "labels.npy"))
    images = Images(pixels, labels)
    dataset = Dataset(
        "benchmark",
        images,
        Images(pixels[:10], labels[:10]),
        tuple("0123456789"),
        Preparation((0.5,) * 3, (0.25,) * 3, Augmentation()),
        Partition(np.load(folder / "offsets.npy"), np.load(folder / "indices.npy")),
    )
    return Job(**described), dataset
