"""Fewer bytes for the same messages: the [compression] table.

Up goes the change of the parameters, down go the parameters; buffers, what a method uploads and
what it shares stay as they are. A packed message consists of named tensors like any other: every
engine can carry it, and the bytes that it counts are those that are sent. A client packs last,
after [privacy] and whatever an attacker makes of its reply. The server unpacks first, before it
validates and aggregates.

    float16, bfloat16   rounded to the nearest number
    int8                x as s * k, with a scale s for each block of numbers and a whole k from -127
                        to 127, which is x / s rounded up or down at random: its mean is x / s
    top-k               the largest numbers, and where they are
    random-k            numbers from places that are drawn for each client and round; the server
                        draws the same places, so that nobody sends them

With top-k and random-k a client remembers what it has not sent, and adds it to its next change
(error feedback).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.errors import ProtocolError
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.models.parts import unsent_tensors
from dcfl.seeding import Purpose, derived_seed, generator_for
from dcfl.server.validation import check_like
from dcfl.settings import Settings, key
from dcfl.system.transfers import on_device
from dcfl.tensors import split

# In a packed message instead of the parameters, whose names have no slash.
VALUES, SCALES, PLACES = "packed/values", "packed/scales", "packed/places"
RESIDUAL = "compression/residual"  # in a client's memory: what it has not sent yet
BLOCK = 256  # numbers that share a scale, which costs one byte in 64
MOST_STEPS = 127  # of an int8, to either side
SPARSE = ("top-k", "random-k")


@dataclass(frozen=True)
class CompressionSettings(Settings):
    """The [compression] table."""

    table_name: ClassVar = "compression"

    # How a client sends the change of its parameters. "int8" is rounded at random; "top-k" and
    # "random-k" send a share of the numbers at once, and the rest in later rounds.
    up: Literal["none", "float16", "bfloat16", "int8", "top-k", "random-k"] = "none"
    # How the server sends the parameters.
    down: Literal["none", "float16", "bfloat16", "int8"] = "none"
    # Of the numbers, that "top-k" and "random-k" send in a round.
    share: float = key(0.01, gt=0, le=1)

    @property
    def sparse(self) -> bool:
        """Whether clients send some of the numbers, and remember the rest."""
        return self.up in SPARSE


# Which random numbers a message is packed with, as `derived_seed` takes it.
Draw = tuple[int, int, int, Purpose]


@dataclass(frozen=True)
class Compression:
    """Packs and unpacks the messages of a run. Its server and its clients have the same one."""

    settings: CompressionSettings = CompressionSettings()
    parameters: Tensors = field(default_factory=dict)  # those that are sent, without their numbers
    seed: int = 0

    def packed(self, broadcast: Broadcast) -> Broadcast:
        """The server's message as it is sent."""
        if self.settings.down == "none":
            return broadcast
        parameters, buffers = split(broadcast.weights, self.parameters)
        draw: Draw = self.seed, broadcast.round, 0, "broadcast"
        made = _packed(self.settings.down, self._flat(parameters), draw)
        return replace(broadcast, weights={**buffers, **made})

    def received(self, broadcast: Broadcast) -> Broadcast:
        """The server's message as clients understand it, on whatever device it is."""
        if self.settings.down == "none":
            return broadcast
        draw: Draw = self.seed, broadcast.round, 0, "broadcast"
        flat, buffers = self._unpacked(self.settings.down, broadcast.weights, draw)
        return replace(broadcast, weights={**buffers, **self._shaped(flat)})

    def packed_update(
        self, update: ClientUpdate, received: Broadcast, residual: Tensors
    ) -> tuple[ClientUpdate, Tensors]:
        """A reply as it is sent, and what its client remembers. `residual`: what it remembered."""
        settings = self.settings
        if settings.up == "none":
            return update, {}
        parameters, buffers = split(update.weights, self.parameters)
        before = received.weights
        change = self._flat({name: after - before[name] for name, after in parameters.items()})
        draw: Draw = self.seed, received.round, update.client, "compression"
        if not settings.sparse:
            made = _packed(settings.up, change, draw)
            return replace(update, weights={**buffers, **made}), {}
        change += residual.get(RESIDUAL, 0.0)
        if settings.up == "top-k":
            places = change.abs().topk(self._chosen).indices.sort().values
        else:
            places = on_device(self._drawn(draw), change.device)
        made = {VALUES: change[places]}
        if settings.up == "top-k":
            made[PLACES] = places.to(torch.int32)
        unsent = change.index_fill_(0, places, 0.0)
        return replace(update, weights={**buffers, **made}), {RESIDUAL: unsent}

    def received_update(self, update: ClientUpdate, received: Broadcast) -> ClientUpdate:
        """The reply as the server understands it. ProtocolError if it cannot be unpacked; values
        and buffers are for validation to check."""
        if self.settings.up == "none":
            return update
        draw: Draw = self.seed, received.round, update.client, "compression"
        flat, buffers = self._unpacked(self.settings.up, update.weights, draw)
        weights = {
            name: change.add_(received.weights[name]) for name, change in self._shaped(flat).items()
        }
        return replace(update, weights={**buffers, **weights})

    def model_like(self, broadcast: Broadcast) -> dict[str, Tensor]:
        """What a client has in memory of a message's weights, without the numbers."""
        return {**split(broadcast.weights, (VALUES, SCALES))[1], **self.parameters}

    def update_like(self, broadcast: Broadcast) -> dict[str, Tensor]:
        """What a reply to this message has in the place of weights, without the numbers."""
        like, up = self.model_like(broadcast), self.settings.up
        return like if up == "none" else {**split(like, self.parameters)[1], **self._form(up)}

    # Between named tensors and one vector

    @property
    def _count(self) -> int:
        return sum(example.numel() for example in self.parameters.values())

    @property
    def _chosen(self) -> int:
        """How many numbers top-k and random-k send."""
        return max(1, round(self.settings.share * self._count))

    def _drawn(self, draw: Draw) -> Tensor:
        """The places of random-k, in ascending order."""
        rng = np.random.default_rng(derived_seed(*draw))
        drawn = rng.choice(self._count, self._chosen, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(drawn))

    def _flat(self, tensors: Tensors) -> Tensor:
        return torch.cat([tensors[name].float().reshape(-1) for name in self.parameters])

    def _shaped(self, flat: Tensor) -> dict[str, Tensor]:
        """Undo `_flat`, in dtypes and memory layouts of the model."""
        pieces = torch.split(flat, [example.numel() for example in self.parameters.values()])
        return {
            name: torch.empty_like(example, device=flat.device).copy_(piece.view(example.shape))
            for (name, example), piece in zip(self.parameters.items(), pieces, strict=True)
        }

    # What somebody else has packed

    def _unpacked(
        self, kind: str, weights: Tensors, draw: Draw
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameters, or their changes, as one vector; and the buffers."""
        made, buffers = split(weights, (VALUES, SCALES, PLACES))
        check_like(made, self._form(kind), "weights")
        if twice := buffers.keys() & self.parameters.keys():
            raise ProtocolError(f"{min(twice)} is packed and comes unpacked too")
        values = made[VALUES].float()
        if kind == "int8":
            blocks = F.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)
            return (blocks * made[SCALES][:, None]).view(-1)[: len(values)], buffers
        if kind not in SPARSE:
            return values, buffers
        places = made[PLACES].long() if kind == "top-k" else self._drawn(draw)
        _check_places(places, self._count)
        return torch.zeros(self._count).index_copy_(0, places, values), buffers

    def _form(self, kind: str) -> dict[str, Tensor]:
        """Tensors of the shapes and dtypes that a message of this kind has."""

        def of(length: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(length, dtype=dtype, device="meta")

        count, chosen = self._count, self._chosen
        if kind == "int8":
            return {VALUES: of(count, torch.int8), SCALES: of(-(-count // BLOCK), torch.float32)}
        if kind == "top-k":
            return {VALUES: of(chosen, torch.float32), PLACES: of(chosen, torch.int32)}
        if kind == "random-k":
            return {VALUES: of(chosen, torch.float32)}
        return {VALUES: of(count, getattr(torch, kind))}


def compression_for(settings: CompressionSettings, model: nn.Module, seed: int) -> Compression:
    unsent = unsent_tensors(model)
    return Compression(
        settings,
        {
            name: torch.empty_like(live, device="meta", requires_grad=False)
            for name, live in model.named_parameters()
            if name not in unsent
        },
        seed,
    )


def _packed(kind: str, flat: Tensor, draw: Draw) -> dict[str, Tensor]:
    """All of the numbers, in fewer bits."""
    if kind != "int8":
        half = getattr(torch, kind)
        largest = torch.finfo(half).max
        return {VALUES: flat.clamp(-largest, largest).to(half)}
    blocks = F.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1) / MOST_STEPS
    # On the CPU: the same numbers on every device.
    uniform = on_device(torch.rand(blocks.shape, generator=generator_for(*draw)), flat.device)
    exact = blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    steps = (exact + uniform).floor_().clamp_(-MOST_STEPS, MOST_STEPS)
    return {VALUES: steps.view(-1)[: len(flat)].to(torch.int8), SCALES: scales}


def _check_places(places: Tensor, count: int) -> None:
    before = F.pad(places[:-1], (1, 0), value=-1)
    if not bool((places > before).all()) or int(places[-1]) >= count:
        raise ProtocolError(f"{PLACES} are not ascending numbers from 0 to {count - 1}")
