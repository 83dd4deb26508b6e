"""What it takes to train and to judge: a model as scratch space, the data, the method. One per
process."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dcfl.client import LocalTraining
from dcfl.data.client_data import FederatedData
from dcfl.errors import ClientFailure, ConfigError, Diverged
from dcfl.local_training import train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import Method
from dcfl.models.output import FeatureModel
from dcfl.privacy import PrivacySettings, protected
from dcfl.processes import Terminated
from dcfl.simulation.attacks import Attack
from dcfl.simulation.faults import FaultSettings


@dataclass(frozen=True)
class Workbench:
    method: Method
    model: FeatureModel  # every client in turn trains it
    data: FederatedData
    training: LocalTraining
    seed: int
    faults: FaultSettings = FaultSettings()
    privacy: PrivacySettings = PrivacySettings()
    attack: Attack | None = None
    compile: bool = False

    def on(self, device: torch.device) -> Workbench:
        """This workbench with its model and data on a device, in the process that is to use it: a
        compiler has threads, which do not survive a fork."""
        dataset = self.data.dataset.to(device)
        if self.compile:
            self.model.compile()
        return replace(
            self, model=self.model.to(device), data=FederatedData(dataset, self.data.partition)
        )

    def train(
        self, broadcast: Broadcast, client: int, memory: Tensors
    ) -> tuple[ClientUpdate | ClientFailure, Tensors]:
        """One client's round: its reply and what it keeps.

        Whatever goes wrong in it costs this client alone, but for a setting that no client can use.
        """
        try:
            self.faults.strike(self.seed, broadcast.round, client)
            attack = self.attack if self.attack and client in self.attack.clients else None
            own = self.data.client(client)
            update, kept = train_client(
                self.method,
                self.model,
                attack.data(own) if attack else own,
                broadcast,
                self.here(memory),
                self.training,
                client,
                self.seed,
            )
            update = self._protected(update, broadcast)
            return attack.reply(update, broadcast, self.model) if attack else update, kept
        except (ConfigError, Terminated):
            raise
        except Diverged as error:
            return ClientFailure(client, str(error), "diverged"), {}
        except (MemoryError, torch.OutOfMemoryError) as error:
            return ClientFailure(client, _described(error), "memory"), {}
        except (Exception, SystemExit) as error:  # an exit would end the run as if all were well
            return ClientFailure(client, _described(error)), {}

    def _protected(self, update: ClientUpdate, broadcast: Broadcast) -> ClientUpdate:
        """As it may leave the client."""
        if not self.privacy.active:
            return update
        trainable = {name for name, live in self.model.named_parameters() if live.requires_grad}
        return protected(update, broadcast, trainable, self.privacy, self.seed)

    def here(self, tensors: Tensors) -> Tensors:
        """On the model's device."""
        device = next(self.model.parameters()).device
        return {name: tensor.to(device) for name, tensor in tensors.items()}


@contextmanager
def reproducible(threads: int) -> Iterator[None]:
    """The same bits on every run: a fixed number of threads, and deterministic kernels on a GPU."""
    before = torch.get_num_threads()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _described(error: BaseException) -> str:
    """With the place: the traceback stays where the client ran."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
