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

from dcfl.data.client_data import Batch, ClientData
from dcfl.messages import Tensors
from dcfl.models.output import FeatureModel, Output
from dcfl.models.parts import personal_tensors, unsent_tensors

if TYPE_CHECKING:
    from dcfl.local_training import LocalTraining

__all__ = [
    "Batch",
    "Client",
    "evaluating",
    "frozen",
    "observe",
    "perturbed",
    "without_statistics",
]


@dataclass
class Client:
    """Everything one client knows during one round; `train_client` creates a new one each time."""

    id: int
    round: int  # counted from 1
    model: FeatureModel  # trained in place, starting from `received`
    received: Tensors  # the global weights as sent, and this client's own personal ones
    shared: Tensors  # what the method's server side shares; empty in round 1
    memory: Tensors  # what the client kept from its last round; empty at first; never sent
    data: ClientData
    training: LocalTraining
    num_steps: int = 0  # taken so far
    tally: dict[str, Tensor] = field(
        default_factory=dict
    )  # sums the objective collects for the upload
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))  # float16

    def trainable(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters being trained, by name; `received` and `shared` use the same names."""
        return ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)

    def federated(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters that all clients train together: `trainable` without the personal ones."""
        own = personal_tensors(self.model)
        return ((name, live) for name, live in self.trainable() if name not in own)

    @cached_property
    def global_model(self) -> FeatureModel:
        """A frozen copy of the model as received."""
        return self.frozen(self.received)

    def frozen(self, weights: Tensors) -> FeatureModel:
        """A copy of the model with these weights, in evaluation mode and without gradients."""
        return frozen(self.model, weights)


def frozen(model: FeatureModel, weights: Tensors) -> FeatureModel:
    """A second model of the same architecture, in evaluation mode, that uses these tensors as its
    weights without copying them, and shares what no message has, if they lack it."""
    not_copied = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, memo=not_copied)
    twin.load_state_dict({**unsent_tensors(model), **weights}, assign=True)
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
