"""A data set in memory: uint8 images, or any numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dcfl.data.augment import Augmentation, Preparation
from dcfl.data.readers.arrays import Arrays
from dcfl.data.splits.grouping import KEY_BITS, held_back, key_of
from dcfl.data.splits.partition import Partition
from dcfl.errors import ConfigError, DatasetCorrupt
from dcfl.seeding import generator_for
from dcfl.system.transfers import on_device, settled, to_host
from dcfl.system.wording import some

NUMBERS = (torch.float32, torch.int32)
SAVED = re.compile(r"npz:(?:.*[/\\])?([^/\\]+)-[0-9a-f]{16}\.npz")  # as `Dataset.save` names files


def short_name(dataset: str) -> str:
    """The name of a data set that was saved from memory, wherever its file is; others' as it is."""
    saved = SAVED.fullmatch(dataset)
    return saved[1] if saved else dataset


Size = int | tuple[int, ...]  # an int: of a square; else the axes after the channels


@dataclass(frozen=True)
class Images:
    # uint8 [n, H, W, C]; or float32 or int32 [n, ...]: feature vectors [n, d], series, token ids
    pixels: Tensor
    labels: Tensor  # int64 [n]
    # int64 [n]: those with the same number, such as a patient's, stay together in every split.
    groups: Tensor | None = None
    owners: Tensor | None = None  # int64 [n]: of test images, the client to whom each belongs

    def __post_init__(self) -> None:
        dtype, axes = self.pixels.dtype, self.pixels.ndim
        if (dtype, axes) != (torch.uint8, 4) and (dtype not in NUMBERS or axes < 2):
            found = f"{type(self.pixels).__name__} of {dtype} {list(self.pixels.shape)}"
            raise DatasetCorrupt(
                f"images must be tensors, uint8 [n, height, width, channels], and other inputs "
                f"float32 or int32 [n, ...], not {found}: dcfl.Dataset.of makes them of arrays of "
                f"any kind"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise DatasetCorrupt(
                f"labels must be one int64 per image ({len(self.pixels)}), "
                f"not {self.labels.dtype} {list(self.labels.shape)}"
            )
        for what in ("groups", "owners"):
            numbers = getattr(self, what)
            if numbers is not None and numbers.shape != self.labels.shape:
                raise DatasetCorrupt(
                    f"{what} must be one number per image ({len(self.pixels)}), "
                    f"not {list(numbers.shape)}"
                )

    @property
    def pictures(self) -> bool:
        """Whether they are images, which can be shown and augmented."""
        return self.pixels.dtype == torch.uint8

    @property
    def vectors(self) -> bool:
        """Whether these are feature vectors."""
        return self.pixels.dim() == 2 and self.pixels.is_floating_point()

    @property
    def integers(self) -> bool:
        """Whether these are token ids, or integers of another kind."""
        return self.pixels.dtype == torch.int32

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Tensor | slice) -> Images:
        return self._each(lambda tensor: tensor[which])

    def to(self, device: torch.device) -> Images:
        return self._each(lambda tensor: settled(tensor, device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Images:
        numbers = (None if one is None else change(one) for one in (self.groups, self.owners))
        return Images(change(self.pixels), change(self.labels), *numbers)

    def of(self, owner: int) -> Images:
        """Those that belong to this client."""
        return self if self.owners is None else self[self.owners == owner]

    @cached_property
    def _keys(self) -> list[tuple[bytes, int]]:
        """The hash of each image's pixels, and its label; both are read in one wait."""
        read = to_host({"pixels": self.pixels, "labels": self.labels})
        hashes = (hashlib.sha256(image.tobytes()).digest() for image in read["pixels"].numpy())
        return [*zip(hashes, read["labels"].tolist(), strict=True)]

    @property
    def digests(self) -> NDArray[np.uint64]:
        """Eight bytes of each image's hash: equal for equal pixels."""
        return np.frombuffer(b"".join(hashed[:8] for hashed, _ in self._keys), "<u8")

    @cached_property
    def mixed_order(self) -> Tensor:
        """A shuffle that depends on the images and not on their order: by the hash of their pixels,
        and by label where two are equal."""
        order = sorted(range(len(self)), key=self._keys.__getitem__)
        return on_device(torch.tensor(order, dtype=torch.int64), self.labels.device)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Images:
        """At most so many of the images."""
        return self if count >= len(self) else self[self.sampled(count, generator)]

    def sampled(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """The rows of so many, whichever way the files are sorted: drawn by the generator, or the
        first in their mixed order."""
        order = self.mixed_order
        if generator is not None:
            order = order[torch.randperm(len(self), generator=generator)]
        return order[:count].sort().values


@dataclass(frozen=True)
class Dataset:
    """Training and test images in memory, with their classes and how they become inputs.

    Images are any inputs: pictures, feature vectors, series, token ids. `Dataset.of` makes them.
    """

    name: str
    train: Images
    test: Images
    class_names: tuple[str, ...]
    preparation: Preparation  # normalisation, and the augmentation that suits these images
    partition: Partition | None = None  # for a federation that is already split
    site_names: tuple[str, ...] = ()  # the owners of its parts
    broken: int = 0  # pictures that could not be read and were left out
    held_out: bool = False  # `test` holds training images that were kept back
    numbers: Tensor | None = None  # which of the whole set's training images these are; None: all
    users_own: bool = True  # not one of those that everybody has
    numbered_by: str = ""  # the hash of the split's file that the images were numbered for

    def __post_init__(self) -> None:
        for part in (self.train, self.test):
            if part.labels.device.type != "cpu":
                continue  # checked before they went there
            if not ((part.labels >= 0) & (part.labels < self.classes)).all():
                raise DatasetCorrupt(
                    f"{self.name}: labels must lie between 0 and {self.classes - 1}"
                )

    def __repr__(self) -> str:
        """Five lines, whatever its size."""
        known = self.train.groups
        groups = "" if known is None else f", in {len({*known.tolist()}):,} groups"
        sites = some(self.site_names)
        who = f"{len(self.partition):,}: {sites}" if self.partition else "as data.partition says"
        return (
            f"Dataset {self.name}\n"
            f"  train    {len(self.train):,} of {list(self.train.pixels.shape[1:])}{groups}\n"
            f"  test     {len(self.test):,}{' kept back from training' * self.held_out}\n"
            f"  classes  {self.classes:,}: {some(self.class_names)}\n"
            f"  clients  {who}"
        )

    @classmethod
    def of(
        cls,
        inputs: Any,
        labels: Any = None,
        *,
        test: Any = 0.2,
        class_names: Sequence[str] = (),
        sites: Any = None,
        groups: Any = None,
        image_size: int | None = None,
        as_is: bool = False,
        name: str = "arrays",
    ) -> Dataset:
        """A data set from what you have, for `dcfl.run`, `dcfl.compare` and `dcfl.sweep`.

        Images, uint8 or square ones of floats in 0 to 1, are normalised and augmented; rows of
        floats [n, d] are normalised. All else is given to the model as it is: series [n, C, T],
        floats of any other shape or range, and non-negative integers such as token ids [n, T].

        Args:
            inputs: A NumPy array, a tensor, or a list of them; a list of PIL's pictures; a torch
                data set of (input, label); a Hugging Face data set or a pandas table; or the path
                of a .csv or .parquet file, whose other columns are the inputs. Lists of integers
                may differ in length: zeros follow the shorter ones.
            labels: A number or a class name for each input; of a table, the name of the column.
            test: The share to test on, of each class or of each site; or the test inputs
                themselves: a pair of inputs and labels, or another data set or file.
            class_names: By label; by default those that the labels or the data set have.
            sites: The name of the owner of each input, or the name of the column; by default the
                column "client" or "site" of a table. Without it `data.clients` and
                `data.partition` split them.
            groups: The patient, say, of each input, or the name of the column; those of one
                patient stay together in every split.
            image_size: Resize PIL's pictures to squares of so many pixels.
            as_is: Give everything to the model as it is, whatever it looks like.
            name: For folders and reports.

        Returns:
            The data set.

        Raises:
            DatasetCorrupt: The arrays do not fit together, or are no inputs and labels.

        Example:
            >>> import dcfl, numpy as np
            >>> images = np.random.default_rng(0).integers(0, 256, (500, 16, 16, 3), np.uint8)
            >>> data = dcfl.Dataset.of(images, ["cat", "dog"] * 250, test=0.2)
            >>> len(data.train), len(data.test), data.class_names
            (400, 100, ('cat', 'dog'))
            >>> result = dcfl.run(dataset=data, federation={"rounds": 1})
            >>> result.summary.clients
            8
            >>> series = np.random.default_rng(0).normal(size=(500, 3, 40))
            >>> dcfl.Dataset.of(series, ["walk", "run"] * 250).shape
            (3, 40)
        """
        from dcfl.data.readers.own_arrays import Given, dataset_from

        given = Given(labels, sites, groups, image_size, as_is)
        return dataset_from(inputs, given, test, class_names, name)

    from_arrays = of  # as it was called when it took arrays alone

    def save(self, path: str | Path) -> Path:
        """Write the data set to an .npz file that `data.dataset = "npz:PATH"` reads.

        Args:
            path: The file. Or a folder, for a file that is named after the data set and its
                content: it is written once.

        Returns:
            The file.

        Example:
            >>> import dcfl, numpy as np
            >>> data = dcfl.Dataset.of(np.random.default_rng(0).normal(size=(60, 4)), [0, 1] * 30)
            >>> file = data.save("runs")
            >>> experiment = {"data.dataset": f"npz:{file}", "model.name": "linear"}
            >>> dcfl.run(**experiment, federation={"rounds": 1}).summary.rounds
            1
        """
        from dcfl.data.readers.npz import write_npz

        path = Path(path)
        file = path if path.suffix == ".npz" else path / self.file_name
        if file == path or not file.exists():
            write_npz(file, self.arrays)
        return file

    @property
    def file_name(self) -> str:
        """Of the file that `save` writes in a folder."""
        return f"{self.plain_name}-{self.content[:16]}.npz"

    @property
    def plain_name(self) -> str:
        return re.sub(r"[^\w.-]+", "-", self.name)[:40]

    @cached_property
    def content(self) -> str:
        """A hash of all that `save` writes."""
        digest = hashlib.sha256()
        for field in fields(self.arrays):
            value = getattr(self.arrays, field.name)
            is_array = isinstance(value, np.ndarray)
            digest.update(f"{field.name} {value.shape if is_array else value}\0".encode())
            if is_array:
                digest.update(np.ascontiguousarray(value).data)
        return digest.hexdigest()

    @cached_property
    def arrays(self) -> Arrays:
        """The data set as readers have it; training rows in the order of their sites."""
        here = self.by_site()
        (train, test), part = (here.train, here.test), here.partition

        def plain(numbers: Tensor | None) -> NDArray[np.int64]:
            return np.zeros(0, np.int64) if numbers is None else numbers.cpu().numpy()

        return Arrays(
            train.pixels.cpu().numpy(),
            plain(train.labels),
            test.pixels.cpu().numpy(),
            plain(test.labels),
            self.class_names,
            here.site_names,
            np.zeros(0, np.int64) if part is None else part.offsets,
            plain(train.groups),
            plain(test.groups),
            plain(test.owners),
            mean=np.array(self.preparation.mean),
            std=np.array(self.preparation.std),
        )

    def by_site(self) -> Dataset:
        """With the training rows of a site beside each other, which is how files have them."""
        part = self.partition
        if part is None:
            return self
        rows = np.arange(part.offsets[-1], dtype=np.int32)
        if np.array_equal(part.indices, rows) and len(rows) == len(self.train):
            return self
        train = self.train[torch.from_numpy(part.indices.astype(np.int64))]
        return replace(self, train=train, partition=Partition(part.offsets, rows))

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def vectors(self) -> bool:
        return self.train.vectors

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input, as the model gets it; images are [channels, height, width]."""
        stored = tuple(self.train.pixels.shape[1:])
        return (stored[2], *stored[:2]) if self.train.pictures else stored

    @cached_property
    def channels(self) -> int:
        """The first axis of an input; of token ids, how many different ones there may be."""
        if self.train.integers:
            return 1 + max(int(part.pixels.max()) for part in (self.train, self.test) if len(part))
        return self.shape[0]

    @property
    def size(self) -> Size:
        """The axes after the channels: an int for squares, 1 for feature vectors."""
        axes = self.shape if self.train.integers else self.shape[1:]
        if not axes:
            return 1
        return axes[0] if len(axes) == 2 and axes[0] == axes[1] else axes

    @cached_property
    def scored_cells(self) -> Images:
        """The test images with class + classes * owner in place of their labels."""
        owners = self.test.owners
        if owners is None:
            return self.test
        return replace(self.test, labels=self.test.labels + self.classes * owners)

    @property
    def cells(self) -> int:
        return self.classes * (1 if self.test.owners is None else len(self.site_names))

    @cached_property
    def cell_sizes(self) -> Tensor:
        """How many test images there are, by owner and class: [owners, classes]."""
        labels = to_host({"cells": self.scored_cells.labels})["cells"]
        return torch.bincount(labels, minlength=self.cells).reshape(-1, self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all pixels and labels: about a fifth of a second for CIFAR-10, where the
        processor has instructions for SHA-256."""
        digest = hashlib.sha256(f"{self.class_names} {self.preparation}".encode())
        for part in (self.train, self.test):
            digest.update(f"{tuple(part.pixels.shape)}".encode())
            for tensor in (part.labels, part.pixels):
                digest.update(tensor.cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def to(self, device: torch.device) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def holding_out(self, share: float, seed: int) -> Dataset:
        """A share of the training images in place of the test images: random ones, whole groups by
        their hashes, or, of sites, what each of them keeps back."""
        if not len(self.train):  # at the server: the sites keep back some of theirs
            return replace(self, held_out=True)
        if self.partition is not None:
            found = self.with_sites_holding_back(share)
        elif self.train.groups is not None:
            found = self._keeping_back(self._by_hash(slice(None), share, f"holdout {seed}"))
        else:
            shuffled = torch.randperm(
                len(self.train), generator=generator_for(seed, 0, 0, "holdout")
            ).numpy()
            chosen = shuffled[: round(share * len(self.train))]
            found = self._keeping_back(np.isin(np.arange(len(self.train)), chosen))
        if not (len(found.test) and len(found.train)):
            whole = " in whole groups (data.group)" if self.train.groups is not None else ""
            raise ConfigError(
                f"data.holdout = {share:g} of {len(self.train)} images{whole} is "
                f"{'all' if len(found.test) else 'none'} of them"
            )
        return found

    def with_sites_holding_back(self, share: float) -> Dataset:
        """Each site keeps whole groups of its own back, or images by their pixels where there are
        none, whatever the seed and the other sites; nothing where it would train on one image."""
        assert self.partition is not None
        held = np.zeros(len(self.train), dtype=bool)
        for site in range(len(self.partition)):
            rows = self.partition.of(site)
            own = self._by_hash(torch.from_numpy(rows).long(), share, "holdout")
            held[rows] = own & (len(own) - int(own.sum()) >= 2)
        return self._keeping_back(held)

    def _by_hash(self, rows: Tensor | slice, share: float, salt: str) -> NDArray[np.bool_]:
        own = self.train[rows]
        keys = own.digests if own.groups is None else own.groups.numpy()
        mixed = [key_of(f"{salt} {key % 2**KEY_BITS}") for key in keys.tolist()]
        return np.isin(mixed, [*held_back(mixed, own.labels.tolist(), share)])

    def _keeping_back(self, held: NDArray[np.bool_]) -> Dataset:
        remaining, kept_back = (torch.from_numpy(np.flatnonzero(one)) for one in (~held, held))
        dataset, test = self._training_on(remaining), self.train[kept_back]
        if self.partition is not None:
            owner, place = np.zeros(len(held), np.int64), np.cumsum(~held) - 1
            parts = [self.partition.of(site) for site in range(len(self.partition))]
            for site, part in enumerate(parts):
                owner[part] = site
            test = replace(test, owners=torch.from_numpy(owner)[kept_back])
            partition = Partition.of_parts([place[part[~held[part]]] for part in parts])
            dataset = replace(dataset, partition=partition)
        return replace(dataset, test=test, held_out=True)

    @property
    def group_count(self) -> int | None:
        """How many groups the images come in, to train on and to test on; None: each is alone."""
        numbers = [part.groups for part in (self.train, self.test) if part.groups is not None]
        return len(np.unique(torch.cat(numbers).cpu().numpy())) if numbers else None

    def ungrouped(self) -> Dataset:
        """The same images, each of them alone."""
        train, test = (replace(part, groups=None) for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    def with_classes(self, count: int) -> Dataset:
        """The images of the first so many classes."""
        if count > self.classes:
            raise ConfigError(f"data.classes = {count}: {self.name} has {self.classes}")
        if self.partition is not None:
            raise ConfigError("data.classes: the data comes as sites, which have their own split")
        part = self._training_on((self.train.labels < count).nonzero().flatten())
        test = self.test[self.test.labels < count]
        return replace(part, test=test, class_names=self.class_names[:count])

    def trained_on(self, count: int, seed: int) -> Dataset:
        """At most so many of the training images, drawn by the seed."""
        if self.partition is not None:
            raise ConfigError("data.train_images: the data comes as sites; take smaller folders")
        if count >= len(self.train):
            return self
        drawn = generator_for(seed, 0, 0, "training sample")
        return self._training_on(self.train.sampled(count, drawn))

    def _training_on(self, rows: Tensor) -> Dataset:
        """These training images, which keep their numbers."""
        numbers = rows if self.numbers is None else self.numbers[rows]
        return replace(self, train=self.train[rows], numbers=numbers)

    def scored_on(self, count: int, seed: int) -> Dataset:
        """At most so many of the test images, drawn by the seed."""
        drawn = generator_for(seed, 0, 0, "test sample")
        return replace(self, test=self.test.sample(count, drawn))

    def without_test_images(self, count: int) -> Dataset:
        """Without the first so many test images of the mixed order, which no seed changes."""
        if count >= len(self.test):
            raise ConfigError(
                f"data.test_skip = {count}: {self.name} has {len(self.test)} test images, and none "
                f"would be left"
            )
        return replace(self, test=self.test[self.test.mixed_order[count:].sort().values])

    def augmented_by(self, augmentation: Augmentation) -> Dataset:
        return replace(self, preparation=replace(self.preparation, augmentation=augmentation))
