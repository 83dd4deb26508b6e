"""All that crosses the wire: Broadcast down, ClientUpdate up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor

Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True)
class Broadcast:
    """The server's message to every client of a round."""

    round: int  # counted from 1
    weights: Tensors  # of the global model: all but what is frozen or personal
    shared: Tensors  # what the method's server side shares, such as prototypes

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.weights) + num_bytes(self.shared)


PRIVATE = "privacy/"  # begins the names of what [privacy] has in `shared`; methods never see it
LOG = "log/"  # begins the names of the user's own numbers, of clients and of the server


def private_and_rest(shared: Tensors) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What [privacy] shares, and what the method does."""
    private = {name: tensor for name, tensor in shared.items() if name.startswith(PRIVATE)}
    return private, {name: tensor for name, tensor in shared.items() if name not in private}


class Traffic(NamedTuple):
    """Bytes that one client's round took on the wire, as measured by the transport."""

    up: int
    down: int


@dataclass(frozen=True)
class ClientUpdate:
    """One client's reply; tensors must not be changed.

    `client`, `num_examples`, `num_steps`; `weights`, the client's own after training, parameters
    and buffers, not changes; `upload`, what the method sends besides; `metrics`, numbers such as
    the loss; `traffic`, bytes.
    """

    client: int  # its number, counted from 0
    weights: Tensors  # as they are after training, not changes: parameters and buffers
    upload: Tensors  # what the method sends in addition to the weights
    num_examples: int  # how many images the client trained on
    num_steps: int  # how many batches
    metrics: Mapping[str, float]  # such as the loss
    traffic: Traffic | None = None  # None: nothing was sent, so the size of the tensors counts

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.weights) + num_bytes(self.upload)


def num_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
