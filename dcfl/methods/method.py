"""The contract: what a federated method may change. The defaults are FedAvg."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

import torch.nn.functional as F
from torch import Tensor

from dcfl.client import LARGEST, Batch, Client, LocalTraining
from dcfl.errors import require
from dcfl.messages import ClientUpdate, Tensors

Objective: TypeAlias = Callable[[Batch], Tensor]
LONGEST_NAME = 50  # characters
PLAIN_NAME = re.compile(rf"\w[\w.-]{{0,{LONGEST_NAME - 1}}}")


@dataclass(frozen=True)
class Cost:
    """What a step and a round cost. The defaults are FedAvg's.

    Sizes are formulas over `weights` (bytes of the model), `parameters` (bytes of its parameters),
    `classes` and `d` (of the embedding). A test measures that all of it is true.
    """

    forwards: int = 1  # per step, of any model
    backwards: int = 1
    copies: int = 0  # of the model during training, beside the trained and the received weights
    passes: int = 0  # over the client's data after training, without gradients
    up: str = "0"  # bytes sent beside the weights
    down: str = "0"
    kept: str = "0"  # bytes that a client keeps between its rounds


@dataclass(frozen=True)
class Method:
    """Fields are hyper-parameters, overrides are ideas; nothing of a run is stored on `self`.

    Five hooks, all optional: `objective` and `gradient` shape a step, `upload` and `remember` end a
    client's round, `merge` combines the uploads on the server. `upload_like`, `check_upload` and
    `fitted` guard `merge` against clients that cannot be trusted.
    """

    name: ClassVar[str]  # as in METHODS; the class's own name in lower case unless set
    equation: ClassVar[str] = "L = L_CE"
    cost: ClassVar[Cost] = Cost()
    neutral: ClassVar[Mapping[str, object]] = {}  # the field values at which it is FedAvg
    published: ClassVar[Mapping[str, Mapping[str, float]]] = {}  # the DCFL paper's, by data set

    @classmethod
    def for_dataset(cls, dataset: str) -> Self:
        """With the values that the DCFL paper used on this data set, where it is one of its own."""
        return cls(**cls.published.get(dataset, {}))

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def __post_init__(self) -> None:
        """Value checks; a method with checks of its own calls this one too."""

    @property
    def second_view(self) -> bool:
        """Whether batches shall carry a second augmented view of their images."""
        return False

    def objective(self, client: Client) -> Objective:
        """Called once a round: returns the loss of a batch. Set-up lives in the closure."""

        def loss(batch: Batch) -> Tensor:
            return F.cross_entropy(client.model(batch.images).logits, batch.labels)

        return loss

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        """Leave the step's gradient in the parameters, scaled by `client.scaler`, and return the
        loss."""
        loss = objective(batch)
        client.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss

    def upload(self, client: Client) -> Tensors:
        """What to send beside the weights, after training."""
        return {}

    def remember(self, client: Client) -> Tensors:
        """What this client finds in `client.memory` at its next visit."""
        return {}

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors | None:
        """On the server: what `upload` returns, by names, shapes and dtypes alone; None: anything.
        `width`: of the embedding."""
        return {} if type(self).upload is Method.upload else None

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        """On the server, before `merge`: raise ProtocolError for what no honest client would send.
        Names, shapes and dtypes have been checked, and all numbers are finite."""

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        """On the server: what every client finds in `client.shared` in the next round."""
        return shared

    def fitted(self, robust: bool) -> Self:
        """This method for a server whose rule of aggregation is robust or not: what its fields
        leave open about `merge` is decided, so that a few forged uploads cannot steer it if a few
        forged weights cannot."""
        return self


def require_plain_name(name: object) -> None:
    """A method's name becomes part of folders, tables and command lines."""
    require(
        isinstance(name, str) and PLAIN_NAME.fullmatch(name) is not None,
        f"{name!r} is no name for a method: it may have letters, digits, '-', '_' and '.', at most "
        f"{LONGEST_NAME}, and begins with none of '-' and '.'",
    )


def at_least_zero(method: Method, *names: str) -> None:
    """A value check for `__post_init__`."""
    for name in names:
        value = getattr(method, name)
        require(0 <= value < LARGEST, f"method.{name} must be 0 or more, not {value:g}")


def above_zero(method: Method, *names: str) -> None:
    for name in names:
        value = getattr(method, name)
        require(0 < value < LARGEST, f"method.{name} must be above 0, not {value:g}")
