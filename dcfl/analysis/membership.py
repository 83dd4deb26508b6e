"""Who was in the training set, by what the final model says of an image.

By a threshold on the loss (Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection
to Overfitting", CSF 2018): the model is surer of what it has learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dcfl.data import Images
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


def infer_membership(subject: Subject) -> Membership:
    """Of the training images of all clients, against the images that the run was judged by."""
    generator = torch.Generator().manual_seed(subject.experiment.federation.seed)
    train, test = subject.dataset.train, subject.dataset.test
    chosen = torch.randperm(len(train), generator=generator)[:MOST_JUDGED]
    losses = [_losses(subject, one) for one in (train[chosen.to(train.labels.device)], test)]
    return threshold_attack(*losses)


def _losses(subject: Subject, images: Images) -> NDArray[np.float64]:
    _, logits = embed(subject.model, images, subject.dataset.preparation)
    losses = F.cross_entropy(logits.double(), images.labels.cpu(), reduction="none")
    found: NDArray[np.float64] = losses.numpy()
    return found


def threshold_attack(members: NDArray[np.float64], others: NDArray[np.float64]) -> Membership:
    """Call those a member whose loss is low. AUC: the share of pairs of a member and another in
    which the member's is lower, ties counting half."""
    ranked = np.sort(others)
    above = len(others) - np.searchsorted(ranked, members, side="right")
    ties = len(others) - np.searchsorted(ranked, members, side="left") - above
    auc = float((above + ties / 2).mean() / len(others))
    threshold = ranked[int(LOW_RATE * len(others))]  # so many of the others are below it
    return Membership(len(members), len(others), auc, float((members < threshold).mean()))
