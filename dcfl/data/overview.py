"""A split summed up, for when there are too many clients to show one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

MANY_CLIENTS = 300  # more are summed up; programs get all of them
PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(frozen=True, eq=False)
class Overview:
    counts: NDArray[np.int64]  # samples of each client and class

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        return np.asarray(self.counts.sum(axis=1))

    @cached_property
    def held(self) -> NDArray[np.int64]:
        """How many classes each client has."""
        return np.asarray((self.counts > 0).sum(axis=1))

    @cached_property
    def largest_shares(self) -> NDArray[np.float64]:
        """Of each client's most frequent class among its samples."""
        return np.asarray(self.counts.max(axis=1) / np.maximum(self.sizes, 1))

    @property
    def smallest(self) -> int:
        """The client, by its number; the first of several."""
        return int(self.sizes.argmin())

    @property
    def largest(self) -> int:
        return int(self.sizes.argmax())
