"""Pictures that are the same, pixel by pixel: within a data set, and in what a model has seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dcfl.data.datasets import Dataset, Images
from dcfl.errors import RunFolderError
from dcfl.system.storage import read_whole, replacing
from dcfl.system.wording import printable

TRAINED_ON = "trained_on.digests"  # in a run folder: eight bytes of each picture's hash
LARGEST = 8 * 10**8  # bytes of such a file: a hundred million pictures

Digests = NDArray[np.uint64]


class Identical(NamedTuple):
    """How many pictures there are more than once; None where the question makes no sense."""

    to_train_and_test: int
    labels: int
    groups: int | None

    def __str__(self) -> str:
        """Empty if there are none."""
        kinds = ("both to train on and to test on", "under two labels", "in two groups")
        return ", ".join(
            f"{count:,} {kind}" for count, kind in zip(self, kinds, strict=True) if count
        )


def identical_pictures(dataset: Dataset) -> Identical:
    parts = (dataset.train, dataset.test)
    digests = np.concatenate([part.digests for part in parts])
    _, pictures = np.unique(digests, return_inverse=True)

    def under_two(values: Sequence[torch.Tensor]) -> int:
        _, kinds = np.unique(torch.cat([*values]).cpu().numpy(), return_inverse=True)
        different = np.unique(pictures * (kinds.max(initial=0) + 1) + kinds)
        return int((np.bincount(different // (kinds.max(initial=0) + 1)) > 1).sum())

    groups = [part.groups for part in parts if part.groups is not None]
    return Identical(
        under_two([torch.full((len(part),), side) for side, part in enumerate(parts)]),
        under_two([part.labels for part in parts]),
        under_two(groups) if len(groups) == 2 else None,
    )


def write_digests(folder: Path, train: Images, weights: str) -> None:
    """Of all that a model has seen that is trained on these, and that began with the weights in
    this file, if any."""
    _write(folder, read_digests(Path(weights).parent) if weights else None, train.digests)


def join_digests(folder: Path, other: Path) -> None:
    _write(folder, read_digests(folder), read_digests(other))


def _write(folder: Path, *parts: Digests | None) -> None:
    known = [part for part in parts if part is not None]
    if known:
        with replacing(folder / TRAINED_ON) as partial:
            partial.write_bytes(np.unique(np.concatenate(known)).astype("<u8").tobytes())


def read_digests(folder: Path) -> Digests | None:
    """Of the pictures that a run's model has seen, sorted; None if its folder does not say."""
    path = folder / TRAINED_ON
    if not path.is_file():
        return None
    content = read_whole(path, LARGEST)
    if len(content) % 8:
        raise RunFolderError(f"{printable(path)}: damaged (not a whole number of hashes)")
    seen = np.frombuffer(content, "<u8")
    if (seen[1:] <= seen[:-1]).any():
        raise RunFolderError(f"{printable(path)}: damaged (not in order)")
    return seen


def trained_on(folder: Path, images: Images) -> int | None:
    """How many of these the run in the folder was trained on; None if its folder does not say."""
    seen = read_digests(folder)
    return None if seen is None else int(are_among(images.digests, seen).sum())


def are_among(digests: Digests, seen: Digests) -> NDArray[np.bool_]:
    """Which of these are among those of a file, which are many and sorted."""
    if not len(seen):
        return np.zeros(len(digests), bool)
    return np.equal(seen[np.searchsorted(seen[:-1], digests)], digests)
