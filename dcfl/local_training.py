"""The local training loop, which all methods share, and its settings."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim.sgd import sgd

from dcfl.client import Client
from dcfl.data.client_data import ClientData
from dcfl.errors import NO_LONGER_FINITE, ConfigError, Diverged
from dcfl.messages import LOG, Broadcast, ClientUpdate, Tensors
from dcfl.models.output import FeatureModel
from dcfl.models.parts import (
    NORMALISATIONS,
    personal_and_rest,
    personal_tensors,
    unsent_tensors,
    with_personal,
)
from dcfl.seeding import derived_seed
from dcfl.settings import Settings, key
from dcfl.tensors import (
    apart_from,
    canonical,
    copies,
    load,
    not_finite,
    snapshot,
    together,
    totals,
)

if TYPE_CHECKING:
    from dcfl.methods.method import Method

OWN_AND_PERSONAL = (
    "federation.personal: with {} every client has a whole model of its own; leave out one of both"
)


@dataclass(frozen=True)
class LocalTraining(Settings):
    """The [training] table: SGD on every client, with a fresh optimiser in each round."""

    table_name: ClassVar = "training"

    epochs: int = key(5, ge=1)  # passes over a client's images in a round
    # Images in a step.
    batch_size: int = key(64, ge=2, hint="a single image has no batch statistics and no pairs")
    lr: float = key(0.01, gt=0)  # the learning rate of round 1
    lr_decay: float = key(0.998, gt=0, le=1)  # factor on the rate after each round
    # "round+epoch": decays after each local epoch too, as in FedRCL's and FedACG's code
    lr_decay_per: Literal["round", "round+epoch"] = "round"
    momentum: float = key(0.9, ge=0, lt=1)  # of SGD
    weight_decay: float = key(5e-4, ge=0)  # of SGD, in L2
    decay_norm_and_bias: bool = True  # false: no weight decay of normalisation layers and biases
    # A longer gradient is cut to this; 0: none is.
    max_grad_norm: float = key(10.0, ge=0, zero="off")
    # First train the personal part alone for so many epochs, then the rest alone for `epochs`, as
    # in FedRep; 0: both together.
    head_epochs: int = key(0, ge=0, zero="off")

    @property
    def all_epochs(self) -> int:
        """How often a client goes over its images in a round."""
        return self.head_epochs + self.epochs

    def steps_on(self, images: int) -> int:
        """How many a client with so many images takes in a round. A batch of one is left out."""
        return self.epochs * -(-(images - 1) // self.batch_size)

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


def train_client(
    method: Method,
    model: FeatureModel,
    data: ClientData,
    broadcast: Broadcast,
    memory: Tensors,
    training: LocalTraining,
    client_id: int,
    seed: int,
) -> tuple[ClientUpdate, Tensors]:
    """Train one client for one round; returns its reply and its new memory.

    `model` is scratch space: the broadcast overwrites all of its weights that are neither frozen
    nor personal, and the memory those that are personal, if it has them.
    """
    started = time.perf_counter()
    personal, has_own = personal_tensors(model), method.has_own_model
    if personal and has_own:
        raise ConfigError(OWN_AND_PERSONAL.format(method.name))
    own, remembered = personal_and_rest(memory) if personal or has_own else ({}, memory)
    start = broadcast.weights if has_own else {**broadcast.weights, **own}
    load(model, start, optional=unsent_tensors(model))
    model.train()
    client = Client(
        id=client_id,
        round=broadcast.round,
        model=model,
        received={**broadcast.weights, **copies(personal)},
        shared=broadcast.shared,
        memory=remembered,
        data=data,
        training=training,
        scaler=_loss_scaler(model),
        own=own if has_own else {},
    )
    with _own_randomness(model, derived_seed(seed, broadcast.round, client_id, "model")):
        if method.overrides("start"):
            begun = method.start(client)
            _require_names(begun, client, "start", method)
            load(model, begun, optional=model.state_dict().keys())
        loss = _descend(method, client, seed)
        weights = snapshot(model, broadcast.weights)  # what was sent comes back
        upload = apart_from(model, canonical(method.upload(client)))
        remembered = apart_from(model, canonical(method.remember(client)))
        if has_own:
            kept = apart_from(model, canonical(method.own_weights(client)))
            _require_names(kept, client, "own_weights", method)
        else:
            kept = snapshot(model, personal)
        new_memory = with_personal(kept, remembered)
    _require_unsent(personal, upload, method)
    # Check weights and memory too: the last step may overflow after the last loss.
    produced = together(loss={"mean": loss}, weights=weights, upload=upload, memory=new_memory)
    sums = totals(produced)  # the only wait for the device
    if not_finite(produced, sums):
        raise Diverged(
            f"the {NO_LONGER_FINITE} (round {broadcast.round}): "
            f"lower training.lr or the method's weight, or set training.max_grad_norm"
        )
    update = ClientUpdate(
        client=client_id,
        weights=weights,
        upload=upload,
        num_examples=len(data),
        num_steps=client.num_steps,
        metrics={
            "loss": sums["loss/mean"],
            "seconds": time.perf_counter() - started,
            **{
                f"{LOG}{name}": float(sum(calls) / len(calls))
                for name, calls in client.logged.items()
            },
        },
    )
    return update, new_memory


def _require_unsent(personal: Tensors, upload: Tensors, method: Method) -> None:
    """Refuse an upload with anything that belongs to a personal tensor, in whatever form."""
    revealed = sorted(personal.keys() & upload.keys())
    if revealed:
        raise ConfigError(
            f"{method.name} uploads {revealed[0]}, which federation.personal keeps at its client: "
            f"use client.federated() instead of client.trainable()"
        )


def _require_names(made: Tensors, client: Client, hook: str, method: Method) -> None:
    unknown = sorted(made.keys() - client.received.keys())
    if unknown or (hook == "own_weights" and not made):
        raise ConfigError(
            f"{method.name}: {hook} must return tensors with names of client.received, not "
            f"{unknown[0] if unknown else 'none'}"
        )


@contextmanager
def _own_randomness(model: FeatureModel, seed: int) -> Iterator[None]:
    """Seeds torch's generators, which modules such as dropout draw from, within the block; restores
    the caller's generators afterwards."""
    device = next(model.parameters()).device
    gpus = [device.index] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        # Not torch.manual_seed: it records a traceback for every unused kind of device.
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:  # not torch.cuda.manual_seed: the model need not be on the current GPU
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


def _loss_scaler(model: FeatureModel) -> GradScaler:
    """float16 loses small gradients unless the loss is scaled up. Every client starts with the same
    scale, which can only fall, so its bits do not depend on who trained before it."""
    device = next(model.parameters()).device.type
    half = getattr(model, "autocast", None) is torch.float16  # a user's module may lack it
    return GradScaler(device, init_scale=2.0**12, growth_interval=2**31 - 1, enabled=half)


class _SGD:
    """SGD with momentum and weight decay, in one pass over all parameters of a group.

    torch.optim.SGD gives the same bits, but the first one made in a process imports torch's
    compiler, which costs every worker a second and 70 MB.
    """

    # GradScaler then lets the step leave out what overflowed, and never waits: it sets `grad_scale`
    # and `found_inf` around a step.
    _step_supports_amp_scaling = True

    def __init__(self, model: FeatureModel, training: LocalTraining) -> None:
        self._momentum = training.momentum
        decay = training.weight_decay
        spared = frozenset() if training.decay_norm_and_bias else norms_and_biases(model)
        trainable = [(name, live) for name, live in model.named_parameters() if live.requires_grad]
        decaying = [live for name, live in trainable if name not in spared]
        others = [live for name, live in trainable if name in spared]
        self.param_groups: list[dict[str, Any]] = [  # as GradScaler expects them
            {"params": params, "decay": decay}
            for params, decay in ((decaying, decay), (others, 0.0))
            if params
        ]
        self._averages: dict[Tensor, Tensor] = {}  # of a parameter's past gradients

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Parameters without a gradient stay as they are."""
        for group in self.param_groups:
            moving = [live for live in group["params"] if live.grad is not None]
            sgd(
                moving,
                [live.grad for live in moving],
                [self._average(live) for live in moving] if self._momentum else [],
                fused=True,
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
                weight_decay=group["decay"],
                momentum=self._momentum,
                lr=lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def _average(self, live: Tensor) -> Tensor:
        if live not in self._averages:
            self._averages[live] = torch.zeros_like(live)
        return self._averages[live]


class _Descent:
    """Takes one model's steps, from the gradients in its parameters."""

    def __init__(self, client: Client, model: FeatureModel) -> None:
        self._scaler, self._longest = client.scaler, client.training.max_grad_norm
        self._parameters = [live for live in model.parameters() if live.requires_grad]
        self._optimizer = _SGD(model, client.training)

    def clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, lr: float) -> None:
        if self._longest:
            self._scaler.unscale_(self._optimizer)  # type: ignore[arg-type]
            torch.nn.utils.clip_grad_norm_(self._parameters, self._longest)
        self._scaler.step(self._optimizer, lr)  # type: ignore[arg-type]


def norms_and_biases(model: nn.Module) -> frozenset[str]:
    """The names of all biases and of all parameters of normalisation layers. Other vectors count
    too: in users' modules they are usually scales and offsets."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, layer in model.named_modules()
        for name, parameter in layer.named_parameters(recurse=False)
        if isinstance(layer, NORMALISATIONS) or "bias" in name or parameter.ndim < 2
    )


def _at_rest(client: Client) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """With `training.head_epochs`, the parameters that no step moves after the epochs of the
    personal part, and during them."""
    if not client.training.head_epochs:
        return [], []
    together = {id(live) for _, live in client.federated()}
    everything = [live for _, live in client.trainable()]
    return (
        [live for live in everything if id(live) not in together],
        [live for live in everything if id(live) in together],
    )


def _descend(method: Method, client: Client, seed: int) -> Tensor:
    """Train the client's model in place, and its own one beside it, if the method has such; returns
    the mean loss of the first over the steps."""
    training, descent = client.training, _Descent(client, client.model)
    objective = method.objective(client)
    own = _Descent(client, client.own_model) if method.overrides("own_objective") else None
    own_objective = method.own_objective(client) if own else objective
    at_rest = _at_rest(client)
    losses: list[Tensor] = []
    for batch in client.data.training_batches(
        training.all_epochs, training.batch_size, seed, client.round, client.id, method.second_view
    ):
        descent.clear()
        losses.append(method.gradient(client, objective, batch).detach())
        head = batch.epoch < training.head_epochs
        for parameter in at_rest[head]:
            parameter.grad = None
        lr = training.lr_in(client.round, batch.epoch - (0 if head else training.head_epochs))
        descent.step(lr)
        if own:
            own.clear()
            client.scaler.scale(own_objective(batch)).backward()  # type: ignore[no-untyped-call]
            own.step(lr)
        client.scaler.update()
        client.num_steps += not head  # the server is told of the steps of what it is sent
    # Nobody has read a number so far: that would stall a GPU in every step.
    nothing = torch.zeros(1, device=client.data.images.labels.device)
    return torch.stack(losses or [nothing]).mean()
