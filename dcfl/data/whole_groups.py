"""Clients that own whole groups of samples, such as all pictures of a patient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dcfl.data.partition import Integers, Partition
from dcfl.errors import PartitionError

# Splits samples with these labels, so many at least for each client.
Split = Callable[[Integers, int], Partition]


def whole_groups(
    labels: Integers, groups: Integers, min_size: int, clients: int, split: Split
) -> Partition:
    """A scheme deals out groups as if each were one sample of its most frequent class. Groups that
    it leaves over go to the clients with the fewest samples: each sample is somebody's."""
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if clients > len(sizes):
        raise PartitionError(
            f"data.clients = {clients} is more than the {len(sizes)} groups of samples that stay "
            f"together (data.group): ask for fewer clients"
        )
    least = -(-min_size * len(sizes) // len(labels))  # groups that have min_size on average
    try:
        dealt = split(_main_labels(labels, group_of, len(sizes)), least)
    except PartitionError as error:
        raise PartitionError(f"{error} (a sample is a whole group here: data.group)") from error
    owners = _everybodys(dealt, sizes)
    rows = np.argsort(group_of, kind="stable")  # by group
    starts = np.cumsum(sizes) - sizes
    parts = [
        np.concatenate([rows[starts[group] : starts[group] + sizes[group]] for group in own])
        for own in owners
    ]
    smallest = min(map(len, parts))
    if smallest < min_size:
        raise PartitionError(
            f"whole groups (data.group) leave a client with {smallest} of {len(labels)} samples, "
            f"and data.min_size is {min_size}: ask for fewer clients or a smaller data.min_size"
        )
    return Partition.of_parts(parts)


def _main_labels(labels: Integers, group_of: Integers, groups: int) -> NDArray[np.int64]:
    """The most frequent class of each group."""
    counts = np.zeros((groups, int(labels.max()) + 1), dtype=np.int64)
    np.add.at(counts, (group_of, labels), 1)
    return np.asarray(counts.argmax(axis=1))


def _everybodys(dealt: Partition, sizes: NDArray[np.int64]) -> list[list[int]]:
    """The groups of each client, after those that were left over, the largest first."""
    owners = [dealt.of(client).tolist() for client in range(len(dealt))]
    held = [int(sizes[own].sum()) for own in owners]
    spare = np.setdiff1d(np.arange(len(sizes)), dealt.indices)
    for group in spare[np.argsort(-sizes[spare], kind="stable")].tolist():
        poorest = held.index(min(held))
        owners[poorest].append(group)
        held[poorest] += int(sizes[group])
    return owners
