"""Images, who owns them, and how they become batches."""

from dcfl.data.augment import Augmentation, Preparation
from dcfl.data.catalogue import load_dataset
from dcfl.data.client_data import Batch, ClientData, FederatedData
from dcfl.data.datasets import Dataset, Images
from dcfl.data.settings import DataSettings
from dcfl.data.splits.partition import Partition, split

__all__ = [
    "Augmentation",
    "Batch",
    "ClientData",
    "DataSettings",
    "Dataset",
    "FederatedData",
    "Images",
    "Partition",
    "Preparation",
    "load_dataset",
    "split",
]
