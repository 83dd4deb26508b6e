"""The [data] table."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import ClassVar, Literal

from dcfl.data.augment import Augmentation
from dcfl.data.datasets import Dataset
from dcfl.data.splits.grouping import SUBFOLDER, check_grouping, whole_groups
from dcfl.data.splits.own_split import OwnSplit, read_own_split
from dcfl.data.splits.partition import MOST_CLIENTS, SCHEMES, Integers, Partition, split
from dcfl.errors import ConfigError, PartitionError
from dcfl.settings import Settings, key

USUAL_CLIENTS = 20
IMAGES_EACH = 50  # of a client at least, where the number of clients is chosen by the data


def images_scored(holdout: float) -> str:
    """What a run with this data.holdout is scored on. Only the second are test images."""
    return "kept-back images" if holdout else "test images"


def accuracy_words(holdout: float) -> str:
    """How the accuracy of such a run is called where there is no more room."""
    return f"accuracy on {images_scored(holdout)}" if holdout else "accuracy"


def dataset_words(name: str) -> str:
    return "the sites' own images" if name == "remote" else name


@dataclass(frozen=True)
class DataSettings(Settings):
    """What is trained on, and who owns it."""

    table_name: ClassVar = "data"

    # "digits", "cifar10", "cifar100", "tiny-imagenet", "folder:PATH", "npz:PATH", "sites:PATH";
    # "remote": every Flower node has its own
    dataset: str = "digits"
    path: str = key("data", kind="place")  # where downloaded data sets are
    # How many. "auto": 20, and as many as images of the user's own can carry; sites:PATH has as
    # many as there are folders
    clients: int | Literal["auto"] = key("auto", ge=1, le=MOST_CLIENTS)
    # "dirichlet-balanced", "dirichlet-capped", "dirichlet-uncapped", "iid", "shards",
    # "pathological" or "quantity"; "file:PATH": a split of one's own, as .json or .csv
    partition: str = "dirichlet-balanced"
    # Dirichlet's: the smaller, the more one-sided the clients; inf: IID.
    alpha: float = key(0.3, gt=0, le=inf, hint="inf is an IID split")
    per_client: int = key(2, ge=1)  # shards or classes, for "shards" and "pathological"
    # No client gets fewer samples.
    min_size: int = key(10, ge=2, hint="a client with a single sample cannot take a step")
    # Of the split, of what is held out, and of train_images and test_images; "federation": as
    # federation.seed, so that another seed is another split and other images too. A number keeps
    # them while the training's seed changes.
    seed: int | Literal["federation"] = key("federation", ge=0, kind="seed")
    # Share of the training images that is kept back and evaluated on, instead of the test images:
    # for choosing settings without looking at those.
    holdout: float = key(0.0, ge=0, le=0.9, zero="none")
    # Images that stay together in the test split, in client splits and in data.holdout, such as a
    # patient's: "subfolder": CLASS/patient_07/1.png; "none"; a regular expression whose first
    # group, or whole match, in the path below the class folder is the name; or a .csv file with the
    # columns file and group.
    group: str = SUBFOLDER
    # Train on so many of the images, drawn by data.seed: every method of a seed has the same ones,
    # another seed has others; 0: on all of them.
    train_images: int = key(0, ge=0, zero="all")
    # Keep the images of the first so many classes; 0: of all.
    classes: int = key(0, ge=0, zero="all")
    # Score on so many of the images, drawn by data.seed likewise; 0: on all of them.
    test_images: int = key(0, ge=0, zero="all")
    # Leave so many test images out, the same ones for every seed: those by which something was
    # chosen. Without effect on data.holdout.
    test_skip: int = key(0, ge=0, zero="none")
    # Pixels of padding; "auto": what suits the data set.
    crop: int | Literal["auto"] = key("auto", ge=0)
    flip: bool | Literal["auto"] = "auto"  # mirror half of the images; "auto": where it makes sense
    # Turn images by up to so many degrees either way.
    rotation: float = key(0.0, ge=0, le=180)
    cutout: int = key(0, ge=0)  # side of a square that is blanked out
    # Pixels; of folder: and sites:, which may hold any size.
    image_size: int = key(32, ge=4, le=1024)
    # Of "remote" sites that have feature vectors: how many numbers each has; 0: they have pictures.
    features: int = key(0, ge=0, le=10**6, zero="pictures")
    # How a picture becomes a square: squeezed, its centre cut out, or with black borders.
    fit: Literal["resize", "crop", "pad"] = "resize"
    # Centre and width of the grey levels that are told apart, for DICOM and for more than 8 bits;
    # empty: the DICOM file's own, or the full range of the file's bits.
    window: tuple[float, ...] = key(())
    broken: Literal["refuse", "skip"] = "refuse"  # what to do with files that are not images
    # In this order, agreed beforehand instead of read from the names of folders.
    class_names: tuple[str, ...] = ()
    # What pixels are normalised by, from 0 to 1 for each channel; empty: what suits the data set.
    # For each number of feature vectors, or one for all of them.
    mean: tuple[float, ...] = key(())
    std: tuple[float, ...] = key((), gt=0)  # likewise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partition not in SCHEMES and not self.split_file:
            raise ConfigError(
                f"data.partition must be {', '.join(SCHEMES)} or file:PATH, not {self.partition!r}"
            )
        if self.classes == 1:
            raise ConfigError("data.classes must be 0 (all), or 2 or more, not 1")
        check_grouping(self.group)
        if self.features and self.dataset != "remote":
            raise ConfigError(
                'data.features is for data.dataset = "remote": files tell it themselves'
            )
        if self.window and (len(self.window) != 2 or self.window[1] <= 0):
            raise ConfigError(
                f"data.window must be [centre, width], with a width above 0, not "
                f"{list(self.window)}"
            )
        if len(self.class_names) == 1 or len({*self.class_names}) != len(self.class_names):
            raise ConfigError(
                f"data.class_names must be two or more different names, not "
                f"{list(self.class_names)}"
            )
        if len(self.mean) != len(self.std):
            raise ConfigError(
                "data.mean and data.std must have one number for each channel, both of them"
            )

    def require_here(self) -> None:
        """Refuse images that only sites have, where somebody wants to see or train on them."""
        if self.dataset == "remote":
            raise ConfigError(
                'data.dataset = "remote" is for `dcfl flower run`: the images are at the sites, '
                "and none are here"
            )

    def augmentation(self, usual: Augmentation) -> Augmentation:
        return Augmentation(
            usual.crop if self.crop == "auto" else self.crop,
            usual.flip if self.flip == "auto" else self.flip,
            self.rotation,
            self.cutout,
        )

    @property
    def population(self) -> int:
        """How many clients there are, where the data has no say in it."""
        return USUAL_CLIENTS if self.clients == "auto" else self.clients

    @property
    def split_seed(self) -> int:
        """Without a federation to follow: 0, like the default of federation.seed."""
        return 0 if self.seed == "federation" else self.seed

    @property
    def split_file(self) -> str:
        """The file that says who owns what; empty: a scheme does."""
        return self.partition.removeprefix("file:") if self.partition.startswith("file:") else ""

    @cached_property
    def own_split(self) -> OwnSplit | None:
        """Read once, because the file may be edited meanwhile."""
        return read_own_split(self.split_file) if self.split_file else None

    def with_own_split(self) -> DataSettings:
        """What a split of one's own decides: the number of clients, and the whole path."""
        found = self.own_split
        return replace(self, clients=len(found.parts), partition=f"{found}") if found else self

    def fitted(self, dataset: Dataset) -> Dataset:
        """A whole data set, with its images numbered as a split of one's own does."""
        if self.split_file and dataset.partition is not None:  # the file is not even read
            raise ConfigError(
                f"data.partition = {self.partition}: {dataset.name} comes with its own split"
            )
        return self.own_split.fitted(dataset) if self.own_split else dataset

    def split(self, dataset: Dataset) -> Partition:
        """The data set's own split if it came with one, else the one that the settings describe."""
        if dataset.partition is not None:
            return dataset.partition
        if self.own_split is not None:
            return self.own_split.over(dataset, self.min_size)
        if self.clients != "auto" or not dataset.users_own:
            return self._split_over(self.population, dataset)
        most = min(max(len(dataset.train) // IMAGES_EACH, 2), USUAL_CLIENTS)
        for clients in range(most, 2, -1):
            with suppress(PartitionError):  # of groups of very different sizes, say
                return self._split_over(clients, dataset)
        return self._split_over(2, dataset)

    def _split_over(self, clients: int, dataset: Dataset) -> Partition:
        def split_so(labels: Integers, min_size: int) -> Partition:
            how = (self.partition, self.alpha, self.split_seed)
            return split(labels, clients, *how, min_size, self.per_client)

        labels, groups = dataset.train.labels.numpy(), dataset.train.groups
        if groups is None:
            return split_so(labels, self.min_size)
        return whole_groups(labels, groups.numpy(), self.min_size, clients, split_so)
