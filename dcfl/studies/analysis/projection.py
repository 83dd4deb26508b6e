"""The embeddings in two dimensions, and how many dimensions they need.

Both from one singular value decomposition of the centred unit vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl.studies.analysis.features import drawn

SHOWN = 3000  # points in a picture
STILL = 1e-12  # share of the mean variance below which a dimension does not move


@dataclass(frozen=True)
class Plane:
    """The two directions in which the unit vectors vary most."""

    points: NDArray[np.float64]  # [shown, 2]
    labels: NDArray[np.int64]  # [shown]
    explained: tuple[float, float]  # share of the variance along each


@dataclass(frozen=True)
class Dimensions:
    """How much of the embedding's width is in use."""

    width: int
    zero: int  # dimensions that are exactly zero for every image: behind a ReLU, dead
    still: int  # dimensions that are the same for every image, the zero ones included
    effective_rank: float
    explained: NDArray[np.float64]  # cumulated over the principal directions, ends at 1

    @property
    def moving_share(self) -> float:
        return 1 - self.still / self.width

    @property
    def rank_share(self) -> float:
        return self.effective_rank / self.width

    def as_json(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "always_zero": self.zero,
            "constant": self.still,
            "moving_share": self.moving_share,
            "effective_rank": self.effective_rank,
            "effective_rank_share": self.rank_share,
            "cumulative_variance": [round(float(share), 6) for share in self.explained],
        }


class Axes(NamedTuple):
    directions: NDArray[np.float64]  # [k, d], orthonormal rows
    variances: NDArray[np.float64]  # [k], descending


def look_at(embeddings: Tensor, labels: Tensor, seed: int = 0) -> tuple[Plane, Dimensions]:
    """`embeddings` [n, d]."""
    raw = embeddings.double().numpy()
    unit = F.normalize(embeddings.double(), dim=1).numpy()
    centred = unit - unit.mean(axis=0)
    directions, variances = principal_axes(centred)
    total = float(variances.sum())
    shares = variances / total if total else np.zeros_like(variances)
    chosen = drawn(len(unit), SHOWN, seed).numpy()
    plane = Plane(
        _two(centred[chosen] @ directions[:2].T),
        labels.numpy()[chosen],
        (float(shares[0]), float(shares[1]) if len(shares) > 1 else 0.0),
    )
    moves = raw.var(axis=0)
    dimensions = Dimensions(
        raw.shape[1],
        int((raw == 0).all(axis=0).sum()),
        int((moves <= STILL * moves.mean()).sum()),
        effective_rank(variances),
        np.cumsum(shares),
    )
    return plane, dimensions


def principal_axes(centred: NDArray[np.float64]) -> Axes:
    """Of rows whose mean is zero. The largest entry of each direction is positive, so that the
    picture is the same whichever sign the decomposition has chosen."""
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(len(directions)), largest] < 0, -1.0, 1.0)
    return Axes(directions * signs[:, None], singular**2 / len(centred))


def effective_rank(variances: NDArray[np.float64]) -> float:
    """exp of the entropy of the variances along the principal directions, as shares: k if k of them
    are equal and the others zero. 0 if nothing varies."""
    # Zeros that rounding has made tiny would only add noise.
    nonzero = variances[variances > 1e-14 * variances.max(initial=0.0)]
    if not len(nonzero):
        return 0.0
    shares = nonzero / nonzero.sum()
    return math.exp(-float((shares * np.log(shares)).sum()))


def _two(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adds a second coordinate where embeddings have only one."""
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
