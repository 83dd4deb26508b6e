"""FedBN, FedPer, LG-FedAvg and FedRep: parts of the model that every client has for itself.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021;
Arivazhagan et al., "Federated Learning with Personalization Layers", 2019; Liang et al., "Think
Locally, Act Globally: Federated Learning with Local and Global Representations", 2020; Collins et
al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.

    w = (s, p):  s is sent and averaged, p stays;  both by L_CE(s, p)

FedRep moves p in the first epochs of a round and s in the last. All are settings by a name
(`federation.personal`), so that they can be compared like any method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError
from dcfl.methods.method import Method, Objective
from dcfl.models.parts import NORMS, within
from dcfl.settings import key


@dataclass(frozen=True)
class FedBN(Method):
    """Every client has normalisation layers of its own."""

    equation: ClassVar = "L(s, p) = L_CE,  p: the normalisation layers, never sent"
    neutral: ClassVar = None
    personal: ClassVar = (NORMS,)


@dataclass(frozen=True)
class FedPer(Method):
    """Every client has a classifier of its own."""

    equation: ClassVar = "L(s, p) = L_CE,  p: the classifier, never sent"
    neutral: ClassVar = None
    personal: ClassVar = ("classifier",)


@dataclass(frozen=True)
class LGFedAvg(Method):
    """Every client has features of its own; the classifier is shared."""

    name: ClassVar = "lg-fedavg"
    equation: ClassVar = "L(s, p) = L_CE,  p: all but the classifier, never sent"
    neutral: ClassVar = None
    personal: ClassVar = ("all but classifier",)


@dataclass(frozen=True)
class FedRep(Method):
    """Every client has a classifier of its own, trained first; then the rest is."""

    # The last epochs of a client's round train all but the classifier, those before train it alone.
    body_epochs: int = key(1, ge=1)

    equation: ClassVar = "p by L_CE(s, p), then s by L_CE(s, p);  p: the classifier, never sent"
    neutral: ClassVar = None
    personal: ClassVar = ("classifier",)

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        loss = super().gradient(client, objective, batch)
        first = client.training.epochs - self.body_epochs
        take_turns(client, batch, self.personal, first, "method.body_epochs")
        return loss


def take_turns(
    client: Client, batch: Batch, parts: Sequence[str], epochs: int, setting: str
) -> None:
    """Keep the gradients of these parts in so many first epochs, and of the rest in the others."""
    training = client.training
    if training.head_epochs:
        raise ConfigError(f"training.head_epochs: set {setting} instead, which does the same")
    if not 0 < epochs < training.epochs:
        raise ConfigError(
            f"training.epochs = {training.epochs}: it must be more than {setting}, or a part of "
            f"the model never moves"
        )
    for name, live in client.trainable():
        if within(name, parts) != (batch.epoch < epochs):
            live.grad = None  # not zero, which weight decay and momentum would move
