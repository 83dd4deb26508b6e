"""Who was in the training set, by what the final model says of an image.

By a threshold on the loss (Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection
to Overfitting", CSF 2018): the model is surer of what it has learnt. And by a likelihood ratio, in
its cheap form (LiRA: Carlini et al., "Membership Inference Attacks From First Principles", S&P
2022; offline, one variance): it is surer than models are that have not seen the image. With
phi = log p / (1 - p), p being the probability of the image's class, an image is ranked by

    phi(final model) - mean of phi(shadow models without the image)

which a single variance, for all images, does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl.data import Images
from dcfl.data.client_data import ClientData
from dcfl.engines.runner import model_for
from dcfl.errors import ConfigError, Diverged
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.seeding import derived_seed, generator_for
from dcfl.tensors import snapshot
from dcfl.trained.subject import Subject, embed

MOST_JUDGED = 5000  # training images
LOW_RATE = 0.01  # of false alarms


@dataclass(frozen=True)
class Membership:
    """How well a threshold tells training images from others."""

    members: int
    others: int
    auc: float  # 0.5: not at all
    found: float  # share of the members above the threshold that LOW_RATE of the others pass
    attack: str = "loss threshold"
    shadows: int = 0


def infer_membership(
    subject: Subject, shadows: int, tell: Callable[[str], None]
) -> tuple[Membership, ...]:
    """Of the training images of all clients, against the images that the run was judged by: by
    their loss, and by LiRA if there are shadow models."""
    seed = subject.experiment.federation.seed
    generator = torch.Generator().manual_seed(seed)
    train, test = subject.dataset.train, subject.dataset.test
    chosen = torch.randperm(len(train), generator=generator)[:MOST_JUDGED]
    members, here = len(chosen), train[chosen.to(train.labels.device)]
    judged = Images(torch.cat([here.pixels, test.pixels]), torch.cat([here.labels, test.labels]))

    def asked(model: FeatureModel) -> Tensor:
        _, logits = embed(model, judged, subject.dataset.preparation)
        return logits.double()

    labels, own = judged.labels.cpu(), asked(subject.model)
    losses = F.cross_entropy(own, labels, reduction="none").numpy()
    by_loss = threshold_attack(losses[:members], losses[members:])
    if not shadows:
        return (by_loss,)
    inside = halves(shadows, len(train) + len(test), seed)
    sure = []
    for number, half in enumerate(inside):
        tell(f"shadow model {number + 1} of {shadows}")
        sure.append(confidence(asked(_shadow(subject, half[: len(train)], number)), labels))
    outside = ~inside[:, torch.cat([chosen, len(train) + torch.arange(len(test))])]
    ranks = -above_shadows(confidence(own, labels), torch.stack(sure), outside).numpy()
    found = threshold_attack(ranks[:members], ranks[members:])
    return by_loss, replace(found, attack="LiRA, offline", shadows=shadows)


def threshold_attack(members: NDArray[np.float64], others: NDArray[np.float64]) -> Membership:
    """Call those a member whose loss is low. AUC: the share of pairs of a member and another in
    which the member's is lower, ties counting half."""
    ranked = np.sort(others)
    above = len(others) - np.searchsorted(ranked, members, side="right")
    ties = len(others) - np.searchsorted(ranked, members, side="left") - above
    auc = float((above + ties / 2).mean() / len(others))
    threshold = ranked[int(LOW_RATE * len(others))]  # so many of the others are below it
    return Membership(len(members), len(others), auc, float((members < threshold).mean()))


# Shadow models


def halves(shadows: int, images: int, seed: int) -> Tensor:
    """Which images are in each shadow's half [shadows, images]. Each image is in as many, and those
    that nobody trains on are dealt too: where they are "in", a shadow does not count. Otherwise the
    means of both kinds would be of different numbers of shadows."""
    if shadows < 2:
        raise ConfigError("--shadows 1: each image needs a model without it: use at least 2")
    drawn = torch.rand(shadows, images, generator=generator_for(seed, 0, 0, "shadow"))
    return drawn.argsort(dim=0).argsort(dim=0) < shadows // 2


def confidence(logits: Tensor, labels: Tensor) -> Tensor:
    """phi = log p / (1 - p) for the labels' classes: without rounding, where p is next to 1."""
    own = F.one_hot(labels, logits.shape[1]).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).logsumexp(dim=1)


def above_shadows(own: Tensor, sure: Tensor, outside: Tensor) -> Tensor:
    """How much surer than the shadows [shadows, images] that have not seen the image."""
    return own - (sure * outside).sum(dim=0) / outside.sum(dim=0)


def _shadow(subject: Subject, half: Tensor, number: int) -> FeatureModel:
    experiment, dataset = subject.experiment, subject.dataset
    seed = derived_seed(experiment.federation.seed, 0, number + 1, "shadow") >> 32
    federation = replace(experiment.federation, seed=seed)
    model = model_for(replace(experiment, federation=federation), dataset)
    model.to(dataset.train.labels.device)
    images = dataset.train[half.nonzero().flatten().to(dataset.train.labels.device)]
    data = ClientData(images, dataset.classes, dataset.preparation)
    start, training = Broadcast(1, snapshot(model), {}), shadow_training(subject)
    try:
        train_client(METHODS["fedavg"](), model, data, start, {}, training, number, seed)
    except Diverged as error:
        raise ConfigError(f"shadow model {number + 1}: {error}") from error
    return model


def shadow_training(subject: Subject) -> LocalTraining:
    """As many passes over the images as the run has made, with a rate that falls as far."""
    training, share = subject.experiment.training, subject.experiment.federation.share
    epochs = max(1, round(subject.round * share * training.epochs))
    decay = training.lr_decay ** (subject.round / epochs)
    return replace(
        training, epochs=epochs, head_epochs=0, lr_decay=decay, lr_decay_per="round+epoch"
    )
