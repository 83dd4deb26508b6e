"""Images, who owns them, and how they become batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dcfl.data.augment import Augmentation
from dcfl.data.client_data import Batch, ClientData, FederatedData
from dcfl.data.datasets import Dataset, Images, load_dataset
from dcfl.data.partition import Partition, Scheme, split
from dcfl.errors import require

__all__ = [
    "Augmentation",
    "Batch",
    "ClientData",
    "DataSettings",
    "Dataset",
    "FederatedData",
    "Images",
    "Partition",
    "load_dataset",
    "split",
]


@dataclass(frozen=True)
class DataSettings:
    """The [data] table."""

    dataset: str = "digits"
    clients: int = 20
    partition: Scheme = "dirichlet-balanced"
    alpha: float = 0.3  # of the Dirichlet distribution; inf = iid
    min_size: int = 10  # no client gets fewer samples
    seed: int = 0  # of the split, apart from the seed of the training
    crop: int | Literal["auto"] = "auto"  # pixels of padding; "auto": what suits the data set
    flip: bool | Literal["auto"] = "auto"
    rotation: float | Literal["auto"] = "auto"  # degrees either way

    def __post_init__(self) -> None:
        require(self.clients >= 1, f"data.clients must be at least 1, not {self.clients}")
        require(
            self.alpha > 0, f"data.alpha must be above 0 (inf for an IID split), not {self.alpha:g}"
        )
        require(
            self.min_size >= 2,
            f"data.min_size must be at least 2, not {self.min_size}: "
            f"a client with a single sample cannot take a step",
        )
        require(self.seed >= 0, f"data.seed must not be negative: {self.seed}")
        require(
            self.crop == "auto" or self.crop >= 0, f"data.crop must not be negative: {self.crop}"
        )
        require(
            self.rotation == "auto" or 0 <= self.rotation <= 180,
            f"data.rotation must lie between 0 and 180 degrees, not {self.rotation}",
        )

    def augmentation(self, usual: Augmentation) -> Augmentation:
        """The data set's usual augmentation, with what is set here in its place."""
        return Augmentation(
            usual.crop if self.crop == "auto" else self.crop,
            usual.flip if self.flip == "auto" else self.flip,
            usual.rotation if self.rotation == "auto" else self.rotation,
        )

    def split(self, dataset: Dataset) -> Partition:
        labels = dataset.train.labels.numpy()
        return split(labels, self.clients, self.partition, self.alpha, self.seed, self.min_size)
