"""Replies as whole numbers, for secure aggregation: their sum is all that the server reads.

Whole numbers modulo 2^32 or 2^64 can be masked and added, and the masks taken off the sum, without
a bit lost. With n < 2^h clients a round, none is above 2^(31-h) or 2^(63-h), so no sum wraps:

    changes of parameters          32 bits, clipped to [-secure_range, secure_range]
    running statistics, uploads    64 bits, clipped to [-2^32, 2^32]; what counts is sent as it is

The simulator rounds alike and adds the same numbers: it has the bits of real sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.errors import Diverged
from dcfl.messages import LOG, Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import MeanUpload
from dcfl.server.robust import Folded

PARAMETERS, OTHERS = "parameters", "others"  # the two tensors of a reply
BITS = {PARAMETERS: 31, OTHERS: 63}
DTYPES = {PARAMETERS: torch.int32, OTHERS: torch.int64}
RANGE_OF_OTHERS = 2.0**32
UPLOAD = "upload/"  # begins the names of what a method sends, among those of parameters
SQUARE, CLIPPED = "/square", "/clipped"  # numbers of ours: no tensor is called so


class Piece(NamedTuple):
    """A tensor among the numbers of a reply."""

    name: str
    part: str  # PARAMETERS or OTHERS
    shape: torch.Size
    step: float  # what one of its whole numbers is worth; 0: it counts


@dataclass(frozen=True)
class FixedPoint:
    trainable: frozenset[str]  # names of the parameters; all other weights are buffers
    upload: Tensors  # an example of the method's upload
    range: float
    clients: int  # of a round
    survivors: int  # replies that a sum needs

    def example(self, received: Tensors) -> Tensors:
        """The form of a reply to these weights."""
        sizes = dict.fromkeys(BITS, 0)
        for piece in self.pieces(received):
            sizes[piece.part] += piece.shape.numel()
        return {p: torch.empty(sizes[p], dtype=DTYPES[p], device="meta") for p in BITS}

    def encode(self, update: ClientUpdate, broadcast: Broadcast) -> ClientUpdate:
        """What of a reply is added, and nothing else. Counts among the buffers stay with it."""
        exact = self.exact(update, broadcast.weights)
        if (lost := named.not_finite(exact)) is not None:
            raise Diverged(f"{lost} is no longer finite, and cannot enter a sum")
        where = next(iter(update.weights.values())).device
        numbers = {part: [torch.empty(0, dtype=DTYPES[part], device=where)] for part in BITS}
        for piece, whole in self.whole(exact, update.client, broadcast):
            numbers[piece.part].append(whole.to(DTYPES[piece.part]).reshape(-1))
        return replace(
            update,
            weights={part: torch.cat(pieces) for part, pieces in numbers.items()},
            upload={},
            num_examples=1,
            num_steps=0,
            metrics={"seconds": update.metrics.get("seconds", 0.0)},  # a pool plans by them
        )

    def exact(self, update: ClientUpdate, received: Tensors) -> dict[str, Tensor]:
        """What is added, by the names of its pieces, before it is rounded."""
        exact = {UPLOAD + name: tensor for name, tensor in update.upload.items()}
        square, clipped = [], []
        for name in _floating(received):
            change = update.weights[name].double() - received[name].double()
            exact[name] = change
            if name in self.trainable:
                square.append(change.square().sum())
                clipped.append((change.abs() > self.range).sum())
        zero = torch.zeros((), dtype=torch.float64)
        return exact | {SQUARE: sum(square, start=zero), CLIPPED: sum(clipped, start=zero.long())}

    def whole(
        self, exact: Tensors, client: int, broadcast: Broadcast
    ) -> Iterator[tuple[Piece, Tensor]]:
        for piece in self.pieces(broadcast.weights):
            most, own = self._most(piece.part), exact[piece.name]
            steps = own.double().div(piece.step).round_() if piece.step else own
            yield piece, steps.clamp(-most, most)

    def decode(self, sums: Tensors, received: Tensors) -> dict[str, Tensor]:
        """The numbers in a sum of replies: float64, or int64 of what counts."""
        begin = dict.fromkeys(BITS, 0)
        found: dict[str, Tensor] = {}
        for piece in self.pieces(received):
            end = begin[piece.part] + piece.shape.numel()
            whole = sums[piece.part][begin[piece.part] : end].reshape(piece.shape)
            found[piece.name] = whole.double() * piece.step if piece.step else whole
            begin[piece.part] = end
        return found

    def pieces(self, received: Tensors) -> list[Piece]:
        """All that is added, in the order in which it is sent."""
        small = self.range / self._most(PARAMETERS)
        wide = RANGE_OF_OTHERS / self._most(OTHERS)
        pieces = [
            Piece(name, PARAMETERS, received[name].shape, small)
            if name in self.trainable
            else Piece(name, OTHERS, received[name].shape, wide)
            for name in _floating(received)
        ]
        for name, like in sorted(self.upload.items()):
            step = wide if like.is_floating_point() else 0.0
            pieces.append(Piece(UPLOAD + name, OTHERS, like.shape, step))
        one = torch.Size()
        return [*pieces, Piece(SQUARE, OTHERS, one, wide), Piece(CLIPPED, OTHERS, one, 0.0)]

    def _most(self, part: str) -> int:
        return 1 << (BITS[part] - self.clients.bit_length())


def _floating(received: Tensors) -> list[str]:
    return sorted(name for name, tensor in received.items() if tensor.is_floating_point())


class SecureMean:
    """The `Sums` of replies in fixed point. They may be any whose sum is the sum."""

    def __init__(self, form: FixedPoint) -> None:
        self._form, self._sums, self.clients = form, dict[str, Tensor](), 0

    def add(self, update: ClientUpdate) -> None:
        self.clients += 1
        for name, numbers in update.weights.items():
            if name in self._sums:
                self._sums[name] += numbers
            else:
                self._sums[name] = numbers.clone()

    def finish(self, sent: Tensors) -> Folded:
        form, clients = self._form, self.clients
        found = form.decode(self._sums, sent)
        upload = {name: found[UPLOAD + name] for name in form.upload}
        means = {
            name: total / clients if total.is_floating_point() else total // clients
            for name, total in upload.items()
        }
        dtypes = {name: like.dtype for name, like in form.upload.items()}
        self.upload: Tensors = upload
        self.mean = MeanUpload(means, clients, dtypes)
        changes = {name: found[name] / clients for name in sent if name in found}
        direction, moved = named.split(changes, form.trainable)
        if SQUARE in found:
            self.mean_square = float(found[SQUARE]) / clients
            clipped = found[CLIPPED].double() / (max(1, self._sums[PARAMETERS].numel()) * clients)
            self.told: Tensors = {f"{LOG}clipped": clipped}
        else:  # of single changes nothing is known, but their mean
            self.mean_square = sum(float(one.square().sum()) for one in direction.values())
            self.told = {}
        buffers = {name: sent[name].double() + change for name, change in moved.items()}
        kept = {name: one for name, one in sent.items() if name not in changes}
        return Folded(direction, {**buffers, **kept})
