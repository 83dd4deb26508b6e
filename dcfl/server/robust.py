"""Robust aggregation rules, which a minority of forged replies cannot steer at will.

With n replies w_i of N clients, f of them suspect, and D_i = w_i - sent:

    norm-clipping      mean_i D_i min(1, C / |D_i|), C = clip_norm, or else the median of the |D_i|
                       Sun et al., "Can You Really Backdoor Federated Learning?", 2019
    median             the middle value of each coordinate
    trimmed-mean       the mean of each coordinate without its f smallest and f largest values
                       Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
                       Statistical Rates", ICML 2018
    krum               the D_i whose n - f - 2 nearest others are nearest, by summed squares
    multi-krum         the mean of the n - f best by that score
                       Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant
                       Gradient Descent", NeurIPS 2017

All of them keep a copy of every reply until the round ends, so they need the memory of as many
models as there are replies. None uses sample counts, which a client can forge.

f. Of N clients a share p = `byzantine` may be attackers. Some rounds sample more of them than the
average, and one such round can undo all others, so three standard deviations of the sample are
added: f = p n + 3 sqrt(p (1 - p) n (N - n) / (N - 1)), rounded up. With all clients that is p n.
f never exceeds the number of attackers, p N, nor a minority, (n - 1) // 2.

Few replies. The Krum rules need n >= 2f + 3, as their theorem does. With fewer, f equal forgeries
are each other's nearest neighbours and win. The server calls `needed` before it uses a rule.

Buffers. Running statistics have another scale than parameters: they would dominate the distances,
and a plain mean would let attackers use them instead. So each of their coordinates is the trimmed
mean (trimmed-mean) or the median of all replies. The Krum rules use the statistics of the chosen
replies, which fit their parameters, unless these lie far from all others, by the same score over
coordinates in units of their median deviation. Integers are those of the first client.

Replies are sorted by client id, which also breaks ties, so the bits do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, sqrt
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl.messages import ClientUpdate, Tensors

Names = Collection[str]
Rows = Sequence[Tensor]  # one reply each, flat: [d]
BLOCK = 2**20  # numbers sorted or compared at a time, over all replies
# For Krum's statistics: the largest accepted score, relative to that of the worst reply that is not
# suspect. 4 is twice the distance; honest clients with different data are seldom that far apart.
FAR = 4.0


class Folded(NamedTuple):
    direction: dict[str, Tensor]  # of the parameters, float64
    buffers: dict[str, Tensor]
    rejected: frozenset[int] = frozenset()  # clients whose replies the rule considers forged


class Defence(NamedTuple):
    """The settings of the robust rules; see ServerSettings."""

    byzantine: float = 0.2
    clip_norm: float = 0.0
    population: int = 0  # clients in the federation; 0: only those that reply


class Reply(NamedTuple):
    client: int
    parameters: Tensor  # flat, in the clients' precision
    buffers: Tensor  # the floating ones, flat
    integers: dict[str, Tensor]


class KeepAll:
    """A fold that sees all replies at once."""

    def __init__(self, trainable: Names, defence: Defence) -> None:
        self._trainable, self._defence = trainable, defence
        self._replies: list[Reply] = []

    def direction(self, rows: Rows, sent: Tensor) -> Tensor:
        """The step from `sent`, where the chosen clients started, to what the rule makes of their
        parameters: float64 [d]."""
        return middle_mean(rows, self.trimmed(len(rows))).sub_(sent)

    def needed(self, replies: int) -> int:
        """How many replies the rule needs, in a round with `replies` replies."""
        return 1

    def trusted(self, rows: Rows) -> list[int]:
        """Indices of the replies whose parameters are not rejected, best first."""
        return list(range(len(rows)))

    def number(self, trusted: int) -> int:
        """How many of the trusted replies to use, best first."""
        return trusted

    def statistics(self, rows: Rows, chosen: Sequence[int]) -> Tensor:
        """New floating-point buffers from those of the clients, float64."""
        return middle_mean(rows, self.trimmed(len(rows)))

    def trimmed(self, replies: int) -> int:
        """How many values to drop at either end of each coordinate; by default all but the middle
        one or two."""
        return (replies - 1) // 2

    def suspects(self, replies: int) -> int:
        """f, see the module's docstring."""
        share, population = self._defence.byzantine, max(self._defence.population, replies)
        left_out = (population - replies) / max(population - 1, 1)
        spread = sqrt(share * (1 - share) * replies * left_out)
        attackers = _rounded_up(share * population)
        return min(_rounded_up(share * replies + 3 * spread), attackers, (replies - 1) // 2)

    def add(self, update: ClientUpdate) -> None:
        parameters, buffers, integers = self._names(update.weights)
        self._replies.append(
            Reply(
                update.client,
                _flat(update.weights, parameters),
                _flat(update.weights, buffers),
                {name: update.weights[name].clone() for name in integers},
            )
        )

    def finish(self, sent: Tensors) -> Folded:
        replies = sorted(self._replies, key=lambda reply: reply.client)
        names, buffer_names, _ = self._names(sent)
        start = _flat(sent, names).double()
        trusted = self.trusted([reply.parameters for reply in replies])
        places = sorted(trusted[: self.number(len(trusted))])
        chosen = [replies[place] for place in places]
        moved = self.direction([reply.parameters for reply in chosen], start)
        statistics = self.statistics([reply.buffers for reply in replies], places)
        return Folded(
            _shaped(moved, sent, names),
            {**_shaped(statistics, sent, buffer_names), **chosen[0].integers},
            frozenset(r.client for r in replies) - {replies[place].client for place in trusted},
        )

    def _names(self, weights: Tensors) -> tuple[list[str], list[str], list[str]]:
        """Names of parameters, floating buffers and integers, in the same order for all replies."""
        buffers = sorted(name for name in weights if name not in self._trainable)
        floating = [name for name in buffers if weights[name].is_floating_point()]
        integers = [name for name in buffers if not weights[name].is_floating_point()]
        return sorted(name for name in weights if name in self._trainable), floating, integers


class NormClipping(KeepAll):
    """The mean, with longer changes clipped to a bound.

    No client pulls harder than the bound, but every client pulls: it limits harm, but does not
    prevent it.
    """

    def direction(self, rows: Rows, sent: Tensor) -> Tensor:
        norms = [float((row - sent).norm()) for row in rows]
        # The lower median: attackers gain by making their changes longer.
        bound = self._defence.clip_norm or median_low(norms)
        total = torch.zeros_like(sent)
        for row, norm in zip(rows, norms, strict=True):
            total.add_(row - sent, alpha=min(1.0, bound / norm) if norm else 1.0)
        return total.div_(len(rows))


class TrimmedMean(KeepAll):
    """The mean of each coordinate without its f smallest and f largest values."""

    def trimmed(self, replies: int) -> int:
        return self.suspects(replies)


class Median(KeepAll):
    """The middle value of each coordinate, or the mean of the middle two."""


class MultiKrum(KeepAll):
    """The mean of the n - f replies that are nearest to their neighbours."""

    def needed(self, replies: int) -> int:
        return 2 * self.suspects(replies) + 3

    def trusted(self, rows: Rows) -> list[int]:
        scores = self.scores(squared_distances(rows))
        best = sorted(range(len(rows)), key=lambda place: (scores[place], place))
        return best[: len(rows) - self.suspects(len(rows))]

    def direction(self, rows: Rows, sent: Tensor) -> Tensor:
        return mean(rows).sub_(sent)

    def statistics(self, rows: Rows, chosen: Sequence[int]) -> Tensor:
        scores = self.scores(squared_distances(_in_median_deviations(rows)))
        limit = FAR * sorted(scores)[len(rows) - self.suspects(len(rows)) - 1]
        sound = [place for place, score in enumerate(scores) if score <= limit]
        places = [place for place in chosen if place in sound] or sound
        return mean([rows[place] for place in places])

    def scores(self, distances: Tensor) -> list[float]:
        """Each reply's summed squared distance from its nearest neighbours. [n, n] -> [n]"""
        neighbours = len(distances) - self.suspects(len(distances)) - 2
        # The first of a row is its distance from itself. Sorting also makes equal sets of numbers
        # have equal sums.
        nearest = distances.sort(dim=1).values[:, 1 : neighbours + 1]
        scores: list[float] = nearest.sum(dim=1).tolist()
        return scores


class Krum(MultiKrum):
    """The one reply that is nearest to its neighbours: a single client's model.

    If clients hold different data, it discards what the others learned, even without an attack.
    """

    def number(self, trusted: int) -> int:
        return 1


def mean(rows: Rows) -> Tensor:
    total = torch.zeros_like(rows[0], dtype=torch.float64)
    for row in rows:
        total.add_(row)
    return total.div_(len(rows))


def middle_mean(rows: Rows, trimmed: int) -> Tensor:
    """The mean of each coordinate without its `trimmed` smallest and largest: float64 [d]."""
    means = torch.empty(len(rows[0]), dtype=torch.float64, device=rows[0].device)
    for start, end in _blocks(rows):
        values = torch.stack([row[start:end] for row in rows], dim=1).sort(dim=1).values
        means[start:end] = values[:, trimmed : len(rows) - trimmed].double().mean(dim=1)
    return means


def squared_distances(rows: Rows) -> Tensor:
    """Between all replies: [n, n]. From differences, because a matrix product loses digits."""
    pairs = torch.zeros(len(rows) * (len(rows) - 1) // 2, dtype=torch.float64)
    for start, end in _blocks(rows):
        block = torch.stack([row[start:end] for row in rows]).double()
        pairs += torch.pdist(block).square().cpu()
    distances = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    above = torch.triu_indices(len(rows), len(rows), offset=1)
    distances[above[0], above[1]] = pairs
    return distances + distances.T


def _in_median_deviations(rows: Rows) -> list[Tensor]:
    """Each coordinate's distance from the median, in units of the median distance."""
    middle = (len(rows) - 1) // 2
    centre = middle_mean(rows, middle)
    apart = [row - centre for row in rows]
    usual = middle_mean([row.abs() for row in apart], middle)
    return [row / usual.where(usual > 0, 1) for row in apart]


def _rounded_up(number: float) -> int:
    return ceil(number - 1e-9)  # 0.07 * 100 is a little more than 7


def _blocks(rows: Rows) -> list[tuple[int, int]]:
    """Bounds of blocks of coordinates: sorting all of them at once would double the memory."""
    size = max(1, BLOCK // len(rows))
    return [(start, start + size) for start in range(0, len(rows[0]), size)]


def _flat(tensors: Tensors, names: Sequence[str]) -> Tensor:
    """Copies, because the next reply may reuse this one's memory."""
    parts = [tensors[name].reshape(-1) for name in names]
    return torch.cat(parts) if parts else torch.empty(0)


def _shaped(flat: Tensor, like: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
    """Split into float64 tensors with the shapes and memory layouts of those in `like`."""
    parts = torch.split(flat, [like[name].numel() for name in names])
    return {
        name: torch.empty_like(like[name], dtype=torch.float64).copy_(part.view_as(like[name]))
        for name, part in zip(names, parts, strict=True)
    }
