"""One client during one round, and tools for methods that need its model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from dcfl.data.client_data import Batch as Batch
from dcfl.data.client_data import ClientData
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.models.output import FeatureModel, Output
from dcfl.models.parts import personal_tensors, unsent_tensors
from dcfl.system.wording import one_line
from dcfl.tensors import copies

if TYPE_CHECKING:
    from dcfl.local_training import LocalTraining


@dataclass
class Client:
    """Everything one client knows during one round; `train_client` creates a new one each time.

    `id`, `round`, `num_steps`; `model`, trained in place from `received`; `shared`, the server's;
    `memory`, its own; `data`, with `images.labels`, `images.pixels` and `classes`; `training`, the
    [training] table, with `lr_in(round)`; `tally`, sums for the upload; `scaler`, of float16;
    `logged`, by `log`; `own`, the weights of its own model, if the method has such.
    """

    id: int  # its number, counted from 0
    round: int  # counted from 1
    model: FeatureModel  # trained in place, starting from `received`
    received: Tensors  # the global weights as sent, and this client's own personal ones
    shared: Tensors  # what the method's server side shares; empty in round 1
    memory: Tensors  # what the client kept from its last round; empty at first; never sent
    data: ClientData  # its images and labels: `data.images.labels`, `data.classes`, `len(data)`
    training: LocalTraining  # the [training] table; `training.lr_in(round)` after its decay
    num_steps: int = 0  # taken so far
    tally: dict[str, Tensor] = field(
        default_factory=dict
    )  # sums the objective collects for the upload
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))  # float16
    logged: dict[str, list[Tensor]] = field(default_factory=dict)  # by `log`
    own: Tensors = field(default_factory=dict)  # its own model's weights, if the method has such

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters being trained, by name; `received` and `shared` use the same names."""
        return ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)

    def federated(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that all clients train together: `trainable` without the personal ones."""
        own = personal_tensors(self.model)
        return ((name, live) for name, live in self.trainable() if name not in own)

    def log(self, name: str, value: float | Tensor) -> None:
        """Record a number, in any hook. Its mean over the calls of this visit goes to
        clients.jsonl; the mean over the clients, weighted by their images, to rounds.jsonl
        (`row.logged`), to trackers and to the page. Not under [privacy]. The server's counterpart:
        `merge` returns a scalar called "log/NAME"."""
        self.logged.setdefault(name, []).append(torch.as_tensor(value).detach().double().mean())

    def maps(self, images: Tensor) -> tuple[Output, tuple[Tensor, ...]]:
        """The model's output for a batch, and its stages as maps [B, C, H, W], before they are
        pooled: for terms on feature maps. `client.global_model.maps` does the same."""
        return self.model.maps(images)

    @cached_property
    def global_model(self) -> FeatureModel:
        """A frozen copy of the model as received."""
        return self.frozen(self.received)

    @cached_property
    def own_model(self) -> FeatureModel:
        """A second model, for methods that train one for each client beside the shared one. It
        starts from `own`: as the client's last round left it, at first as received."""
        twin = self.frozen(copies({**self.received, **self.own})).train()
        for name, live in twin.named_parameters():
            live.requires_grad_(self.model.get_parameter(name).requires_grad)
        return twin

    def frozen(self, weights: Tensors) -> FeatureModel:
        """A copy of the model with these weights, in evaluation mode and without gradients."""
        return frozen(self.model, weights)


def frozen(model: FeatureModel, weights: Tensors) -> FeatureModel:
    """A second model of the same architecture, in evaluation mode, that uses these tensors as its
    weights without copying them, and shares what no message has, if they lack it."""
    not_copied = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, memo=not_copied)
    try:
        twin.load_state_dict({**unsent_tensors(model), **weights}, assign=True)
    except RuntimeError as error:  # of a user's network, or by a user's method
        raise ConfigError(
            f"{type(model).__name__} no longer has the tensors that it began with: neither its "
            f"code nor a method may add, drop, rename or resize any, or put dots in their names "
            f"({one_line(error)})"
        ) from error
    return twin.requires_grad_(False).eval()


def observe(model: FeatureModel, images: Tensor) -> Output:
    """A frozen model's output for use in a loss, computed without a graph."""
    with torch.inference_mode():
        output = model(images)
    return output.mapped(Tensor.clone)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block: running statistics are used but not updated."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm uses the batch's statistics, as in training, and leaves the running ones alone."""
    tracking = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats
    ]
    try:
        for layer in tracking:
            layer.track_running_stats = False
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True


@contextmanager
def perturbed(offsets: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Adds offsets to parameters within the block; restores the exact bits afterwards."""
    originals = [live.detach().clone() for live, _ in offsets]
    try:
        with torch.no_grad():
            for live, offset in offsets:
                live.add_(offset)
        yield
    finally:
        with torch.no_grad():
            for (live, _), original in zip(offsets, originals, strict=True):
                live.copy_(original)
