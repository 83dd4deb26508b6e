"""Clients that lie, for experiments on what a federation withstands: the [attack] table.

A share of the clients, the same ones throughout the run, does one of these in every round they are
sampled for. With w the weights received and D the honest change of the parameters, an attacker

    sign-flip        sends w - strength * D
    noise            sends w + a Gaussian vector, strength times as long as D
    scaling          sends w + strength * D
    label-flip       trains honestly on labels y -> K - 1 - y (strength plays no part)
    prototype-flip   sends its upload times -strength (prototype sums, not their counts), or times
                     -1 where the server rejects that, as with sums of unit vectors

All of this passes the server's validation: names, shapes, counts and buffers are those of an honest
client. The defence has to be in the aggregation.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from dcfl.data.client_data import ClientData
from dcfl.data.datasets import Images
from dcfl.errors import ProtocolError
from dcfl.experiment import AttackSettings, FaultSettings
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import Method
from dcfl.seeding import derived_seed, generator_for
from dcfl.system.transfers import on_device, read_numbers, to_host


def strike(faults: FaultSettings, seed: int, round: int, client: int) -> None:
    """Fail if it is this client's turn, which is a function of (seed, round, client)."""
    draw = np.random.default_rng(derived_seed(seed, round, client, "faults")).random()
    if draw < faults.crash:
        raise RuntimeError("an injected fault")
    if draw < faults.crash + faults.memory:
        raise MemoryError("an injected lack of memory")
    if draw < faults.crash + faults.memory + faults.exit:
        os._exit(17)
    while draw < faults.crash + faults.memory + faults.exit + faults.hang:
        time.sleep(60)


@dataclass(frozen=True)
class Attack:
    settings: AttackSettings
    clients: frozenset[int]
    seed: int

    def data(self, data: ClientData) -> ClientData:
        if self.settings.kind != "label-flip":
            return data
        flipped = Images(data.images.pixels, data.classes - 1 - data.images.labels)
        return replace(data, images=flipped)

    def reply(
        self,
        honest: ClientUpdate,
        broadcast: Broadcast,
        method: Method,
        model: nn.Module,
        training: LocalTraining,
    ) -> ClientUpdate:
        """What an attacker sends instead; the model tells parameters from buffers."""
        if self.settings.kind == "prototype-flip":
            forged = _flipped(honest, self.settings.strength)
            try:  # as the server does
                method.check_upload(replace(forged, upload=to_host(forged.upload)), training)
            except ProtocolError:
                return _flipped(honest, 1.0)
            return forged
        if self.settings.kind == "label-flip":
            return honest
        parameters = model.named_parameters(remove_duplicate=False)
        names = [name for name, _ in parameters if name in broadcast.weights]
        received = {name: broadcast.weights[name] for name in names}
        change = {name: honest.weights[name] - received[name] for name in names}
        if self.settings.kind == "noise":
            change = self._noise(change, honest.client, broadcast.round)
        factor = -1.0 if self.settings.kind == "sign-flip" else 1.0
        sent = {
            name: received[name].add(change[name], alpha=factor * self.settings.strength)
            for name in change
        }
        return replace(honest, weights={**honest.weights, **sent})

    def _noise(self, change: Tensors, client: int, round: int) -> dict[str, Tensor]:
        generator = generator_for(self.seed, round, client, "attack")
        drawn = {}
        for name, tensor in change.items():  # on the CPU: the same numbers on every device
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            drawn[name] = on_device(noise, tensor.device)
        norms = read_numbers([t.double().norm() for t in (*change.values(), *drawn.values())])
        ratio = math.hypot(*norms[: len(change)]) / math.hypot(*norms[len(change) :])
        return {name: tensor * ratio for name, tensor in drawn.items()}


def _flipped(honest: ClientUpdate, strength: float) -> ClientUpdate:
    upload = honest.upload.items()
    forged = {name: t * -strength if t.is_floating_point() else t for name, t in upload}
    return replace(honest, upload=forged)


def attack_on(clients: int, settings: AttackSettings, seed: int) -> Attack:
    order = torch.randperm(clients, generator=generator_for(seed, 0, 0, "attackers")).tolist()
    liars = frozenset(order[: math.ceil(settings.share * clients - 1e-9)])  # 0.2 * 15 is 3
    return Attack(settings, liars, seed)
