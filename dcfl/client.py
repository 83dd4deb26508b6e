"""One client during one round, and tools for methods that need its model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from dcfl.data.client_data import Batch, ClientData
from dcfl.errors import require
from dcfl.messages import Tensors
from dcfl.models.output import FeatureModel, Output
from dcfl.models.parts import personal_tensors, unsent_tensors

__all__ = [
    "Batch",
    "Client",
    "LocalTraining",
    "evaluating",
    "frozen",
    "observe",
    "perturbed",
    "without_statistics",
]


LARGEST_FLOAT32 = 1e38  # close to the largest float32


@dataclass(frozen=True)
class LocalTraining:
    """The [training] table: SGD on every client, with a fresh optimiser in each round."""

    epochs: int = 5  # passes over a client's images in a round
    batch_size: int = 64  # images in a step
    lr: float = 0.01  # the learning rate of round 1
    lr_decay: float = 0.998  # factor on the rate after each round
    # "round+epoch": decays after each local epoch too, as in FedRCL's and FedACG's code
    lr_decay_per: Literal["round", "round+epoch"] = "round"
    momentum: float = 0.9  # of SGD
    weight_decay: float = 5e-4  # of SGD, in L2
    decay_norm_and_bias: bool = True  # false: no weight decay of normalisation layers and biases
    max_grad_norm: float = 10.0  # a longer gradient is cut to this; 0: none is
    # First train the personal part alone for so many epochs, then the rest alone for `epochs`, as
    # in FedRep; 0: both together.
    head_epochs: int = 0

    def __post_init__(self) -> None:
        require(self.epochs >= 1, f"training.epochs must be at least 1, not {self.epochs}")
        require(
            self.batch_size >= 2,
            f"training.batch_size must be at least 2, not {self.batch_size}: "
            f"a single image has no batch statistics and no pairs",
        )
        require(0 < self.lr < LARGEST_FLOAT32, f"training.lr must be above 0, not {self.lr:g}")
        require(
            0 < self.lr_decay <= 1, f"training.lr_decay must lie in (0, 1], not {self.lr_decay:g}"
        )
        require(
            0 <= self.momentum < 1, f"training.momentum must lie in [0, 1), not {self.momentum:g}"
        )
        require(
            0 <= self.weight_decay < LARGEST_FLOAT32,
            f"training.weight_decay must be 0 or more, not {self.weight_decay:g}",
        )
        require(
            0 <= self.max_grad_norm < LARGEST_FLOAT32,
            f"training.max_grad_norm must be 0 (off) or more, not {self.max_grad_norm:g}",
        )
        require(
            self.head_epochs >= 0,
            f"training.head_epochs must be 0 (off) or more, not {self.head_epochs}",
        )

    @property
    def all_epochs(self) -> int:
        """How often a client goes over its images in a round."""
        return self.head_epochs + self.epochs

    def lr_in(self, round: int, epoch: int = 0) -> float:
        """The learning rate of a local epoch, counted from 0."""
        return self.lr * self.lr_decay ** (round - 1) * self._share_of(epoch)

    def _share_of(self, epoch: int) -> float:
        """An epoch's rate as a fraction of the first epoch's."""
        return self.lr_decay**epoch if self.lr_decay_per == "round+epoch" else 1.0

    def effective_steps(self, steps: int) -> float:
        """FedNova's a_i: how many plain steps at the first epoch's rate have the same effect.

        Momentum repeats each gradient in all later steps, with weights 1, m, m^2, ... and their
        rates.
        """
        if self.lr_decay_per == "round":
            return self._with_momentum(steps)
        # Sums over epochs, not steps: a client may claim any number of steps.
        ends = [self._with_momentum(steps * done / self.epochs) for done in range(self.epochs + 1)]
        gained = [after - before for before, after in pairwise(ends)]
        return sum(self._share_of(epoch) * steps for epoch, steps in enumerate(gained))

    def _with_momentum(self, steps: float) -> float:
        m = self.momentum
        return (steps - m * (1 - math.pow(m, steps)) / (1 - m)) / (1 - m)


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
