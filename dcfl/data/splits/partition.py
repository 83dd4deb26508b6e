"""Who owns which sample.

Balanced Dirichlet is the default: every client draws its own mix of classes and all clients are of
equal size, so that the plain mean of Algorithm 1 equals the weighted mean of Eq. 1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcfl.errors import PartitionError

Integers: TypeAlias = NDArray[np.integer[Any]]

LEFT_TO_CHANCE = ("dirichlet-capped", "dirichlet-uncapped")  # client sizes are random
USE_ALPHA = ("dirichlet-balanced", *LEFT_TO_CHANCE, "quantity")
TRIES = 200  # a split that fails this often hardly exists
MOST_CLIENTS = 1_000_000  # of which a site, say, makes lists before it knows the images
SHARES = 2_000_000  # drawn at most, over all tries: a few seconds
ALPHA = 1e6  # a larger one is even to the last sample, and the draw itself would overflow


@dataclass(frozen=True, eq=False)
class Partition:
    """The clients' samples in one array: client k owns indices[offsets[k] : offsets[k + 1]]."""

    offsets: NDArray[np.int64]
    indices: NDArray[np.int32]

    @classmethod
    def of_parts(cls, parts: Sequence[Integers]) -> Partition:
        sizes = [len(part) for part in parts]
        return cls(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.concatenate(parts).astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, client: int) -> NDArray[np.int32]:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def counts(self, labels: Integers, classes: int) -> NDArray[np.int64]:
        """How many samples of each class each client owns: [clients, classes]."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        counts = np.zeros((len(self), classes), dtype=np.int64)
        np.add.at(counts, (owner, labels[self.indices]), 1)
        return counts

    @property
    def sha256(self) -> str:
        little = self.offsets.astype("<i8").tobytes() + self.indices.astype("<i4").tobytes()
        return hashlib.sha256(little).hexdigest()

    def save(self, path: Path, counts: NDArray[np.int64], class_names: Sequence[str]) -> None:
        """Write an .npz: offsets, indices, the counts per client and class, and the hash."""
        with path.open("wb") as stream:
            np.savez_compressed(
                stream,
                offsets=self.offsets,
                indices=self.indices,
                counts=counts,
                class_names=np.array(class_names),
                sha256=np.array(self.sha256),
            )


def split_words(partition: str, alpha: float) -> str:
    """The setting `data.partition` for people: without folders, and with alpha where it counts."""
    kind, colon, path = partition.partition(":")
    if colon:
        return f"{kind}:{PurePath(path).name}"
    if partition not in USE_ALPHA:
        return partition
    return "iid" if math.isinf(alpha) else f"{partition}, alpha = {alpha:g}"


@dataclass(frozen=True, eq=False)
class SplitRequest:
    labels: Integers
    clients: int
    alpha: float
    per_client: int
    min_size: int
    rng: np.random.Generator


def split(
    labels: Integers,
    clients: int,
    scheme: str,
    alpha: float,
    seed: int,
    min_size: int,
    per_client: int = 2,
) -> Partition:
    """Split the samples with these labels over the clients; the same seed gives the same split.

    `alpha` is for the Dirichlet schemes and "quantity"; `per_client` is the number of shards or
    classes that each client gets.
    """
    if clients > len(labels):
        raise PartitionError(
            f"data.clients = {clients} is more than the {len(labels)} training samples: "
            f"ask for fewer clients"
        )
    if math.isinf(alpha) and scheme in USE_ALPHA:
        scheme = "iid"
    rng = np.random.default_rng(seed)
    request = SplitRequest(labels, clients, min(alpha, ALPHA), per_client, min_size, rng)
    by_chance = scheme in LEFT_TO_CHANCE
    tries = min(TRIES, 1 + SHARES // (clients * (int(labels.max()) + 1)))
    for _ in range(tries if by_chance else 1):
        parts = SCHEMES[scheme](request)
        smallest = min(len(part) for part in parts)
        if smallest >= min_size:
            return Partition.of_parts(parts)
    raise PartitionError(
        f"{scheme} leaves a client with {smallest} of {len(labels)} samples, and data.min_size is "
        f"{min_size}: ask for fewer clients{', a larger data.alpha' if by_chance else ''} "
        f"or a smaller data.min_size"
    )


def _iid(request: SplitRequest) -> list[Integers]:
    """A random permutation in equal parts; len(labels) % clients samples are left out."""
    size = len(request.labels) // request.clients
    shuffled = request.rng.permutation(len(request.labels))[: size * request.clients]
    return list(shuffled.reshape(request.clients, size))


def _quantity(request: SplitRequest) -> list[Integers]:
    """Every client has the same mix of classes and its own size: shares ~ Dir(alpha)."""
    spare = max(len(request.labels) - request.clients * request.min_size, 0)
    shares = request.rng.dirichlet(np.full(request.clients, request.alpha))
    cuts = np.floor(np.cumsum(shares)[:-1] * spare).astype(np.int64)
    cuts += request.min_size * np.arange(1, request.clients)  # on top of everybody's minimum
    return np.split(request.rng.permutation(len(request.labels)), cuts)


def _shards(request: SplitRequest) -> list[Integers]:
    """Samples sorted by class, cut into equal shards, `per_client` of them for each client.

    McMahan et al., AISTATS 2017: most clients see two classes. An incomplete shard is left out.
    """
    shards = request.clients * request.per_client
    size = len(request.labels) // shards
    if size < 1:
        raise PartitionError(
            f"{shards} shards are more than the {len(request.labels)} training samples: "
            f"ask for fewer clients or a smaller data.per_client"
        )
    shuffled = request.rng.permutation(len(request.labels))
    by_class = shuffled[np.argsort(request.labels[shuffled], kind="stable")]
    dealt = request.rng.permutation(by_class[: shards * size].reshape(shards, size))
    return [request.rng.permutation(hand.ravel()) for hand in np.split(dealt, request.clients)]


def _pathological(request: SplitRequest) -> list[Integers]:
    """Each client holds exactly `per_client` classes; a class is shared evenly by its clients."""
    piles = _shuffled_classes(request)
    if request.per_client > len(piles) or request.per_client * request.clients < len(piles):
        raise PartitionError(
            f"pathological: {request.clients} clients of data.per_client = {request.per_client} "
            f"classes each cannot share out {len(piles)} classes: choose another data.per_client"
        )
    dealt = _deal(len(piles), request)
    holders = [
        request.rng.permutation(np.flatnonzero((dealt == label).any(axis=1)))
        for label in range(len(piles))
    ]
    pieces: list[list[Integers]] = [[] for _ in range(request.clients)]
    for pile, clients in zip(piles, holders, strict=True):
        for client, piece in zip(clients, np.array_split(pile, len(clients)), strict=True):
            pieces[client].append(piece)
    return [request.rng.permutation(np.concatenate(part)) for part in pieces]


def _deal(classes: int, request: SplitRequest) -> Integers:
    """`per_client` different classes for each client, every class about equally often."""
    dealt = np.empty((request.clients, request.per_client), dtype=np.int64)
    held = np.zeros(classes)
    for client in range(request.clients):
        # Those held least so far come first, in random order among equals.
        order = np.lexsort((request.rng.random(classes), held))
        dealt[client] = order[: request.per_client]
        held[dealt[client]] += 1
    return dealt


def _shuffled_classes(request: SplitRequest) -> list[Integers]:
    classes = range(int(request.labels.max()) + 1)
    return [request.rng.permutation(np.flatnonzero(request.labels == label)) for label in classes]


def _balanced(request: SplitRequest) -> list[Integers]:
    """Each client draws a mix q ~ Dir(alpha), then its samples one by one without replacement, each
    remaining sample with probability proportional to q[its label].

    Late clients take what is left, and fill up at random where their classes have run out.
    """
    size, rng = len(request.labels) // request.clients, request.rng
    piles = _shuffled_classes(request)
    taken = np.zeros(len(piles), dtype=np.int64)
    left = np.array([len(pile) for pile in piles])
    parts: list[Integers] = []
    for _ in range(request.clients):
        mix = rng.dirichlet(np.full(len(piles), request.alpha))
        wanted = _race(mix, left, size, rng)
        if (missing := size - wanted.sum()) > 0:
            wanted += rng.multivariate_hypergeometric(left - wanted, missing)
        drawn = [
            pile[start : start + count]
            for pile, start, count in zip(piles, taken, wanted, strict=True)
        ]
        parts.append(rng.permutation(np.concatenate(drawn)))
        taken += wanted
        left -= wanted
    return parts


def _race(
    mix: NDArray[np.float64], left: NDArray[np.int64], size: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each class are among `size` weighted draws without replacement.

    Such draws are a race: each sample arrives after an exponential time with rate mix[label], and
    the first `size` are drawn. The arrivals within a class are sums of exponential gaps, so only
    the first `size` of each class are simulated, however many samples there are.
    """
    runners = left[:, None] - np.arange(size)[None, :]  # still on the way before each arrival
    rates = runners.clip(min=0) * mix[:, None]
    with np.errstate(divide="ignore", over="ignore"):  # never, or hardly ever, arriving: inf
        arrivals = np.cumsum(rng.exponential(size=rates.shape) / rates, axis=1)
    first = np.argsort(arrivals, axis=None, kind="stable")[:size]
    first = first[np.isfinite(arrivals.ravel()[first])]
    return np.bincount(first // size, minlength=len(mix))


def _class_by_class(request: SplitRequest, capped: bool) -> list[Integers]:
    """Each class is divided by shares ~ Dir(alpha) over the clients still below the cap."""
    cap = len(request.labels) / request.clients if capped else math.inf
    pieces: list[list[Integers]] = [[] for _ in range(request.clients)]
    sizes = np.zeros(request.clients, dtype=np.int64)
    for pile in _shuffled_classes(request):
        shares = request.rng.dirichlet(np.full(request.clients, request.alpha))
        below = sizes < cap
        if below.any():
            shares = np.where(below, shares, 0.0)
        # With a tiny alpha all mass may lie on clients at the cap: then those below share evenly.
        shares = shares / shares.sum() if shares.sum() > 0 else below / below.sum()
        cuts = np.floor(np.cumsum(shares)[:-1] * len(pile)).astype(np.int64)
        for client, piece in enumerate(np.split(pile, cuts)):
            pieces[client].append(piece)
            sizes[client] += len(piece)
    return [request.rng.permutation(np.concatenate(part)) for part in pieces]


def _given(request: SplitRequest) -> list[Integers]:
    raise PartitionError(
        'data.partition = "given" is for data that comes with its split, as sites:PATH does'
    )


SCHEMES: dict[str, Callable[[SplitRequest], list[Integers]]] = {
    "dirichlet-balanced": _balanced,
    "dirichlet-capped": partial(_class_by_class, capped=True),
    "dirichlet-uncapped": partial(_class_by_class, capped=False),
    "iid": _iid,
    "shards": _shards,
    "pathological": _pathological,
    "quantity": _quantity,
    "given": _given,
}
