"""What others can find out from a run, measured by attacks on it: `dcfl attack`.

Gradient inversion (Geiping et al., "Inverting Gradients: How Easy Is It to Break Privacy in
Federated Learning?", NeurIPS 2020): whoever sees a gradient changes pictures until theirs points
the same way. Who was in the training set: `membership.py`. What prototypes tell:
`prototype_leaks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import log10
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dcfl.analysis.membership import Membership, infer_membership
from dcfl.analysis.prototype_leaks import PrototypeLeak, prototype_leaks
from dcfl.client import evaluating
from dcfl.data import Images
from dcfl.data.client_data import normalises_by_batch
from dcfl.errors import ConfigError
from dcfl.report.text import plural
from dcfl.runs.folder import RecordedRun
from dcfl.trained.subject import Subject, open_subject, sees_pictures

NOISES = (0.0, 0.01, 0.1, 1.0)  # deviation, as a multiple of the gradient's length
SMOOTHNESS = 1e-3  # weight of the total variation: real pictures have little
STEP = 0.1  # of Adam, in deviations of a pixel


@dataclass(frozen=True)
class Rebuilt:
    """What became of some images under one amount of noise. Pictures are [n, H, W, C] in 0 to 1."""

    noise: float
    pictures: NDArray[np.float64]
    psnr: tuple[float, ...]  # dB, of each picture


@dataclass(frozen=True)
class Leaks:
    run: RecordedRun
    membership: Membership
    client: int
    originals: NDArray[np.float64]
    rebuilt: tuple[Rebuilt, ...]  # none, where the model sees no pictures
    prototypes: tuple[PrototypeLeak, ...]  # none, where the method sends none

    def as_json(self) -> dict[str, Any]:
        return {
            "membership": asdict(self.membership),
            "client": self.client,
            "inversion": [{"noise": one.noise, "psnr": list(one.psnr)} for one in self.rebuilt],
            "prototypes": [asdict(one) for one in self.prototypes],
        }


def attack_run(run: RecordedRun, client: int = 0, images: int = 1, steps: int = 1000) -> Leaks:
    """Attack a run's final model, and a gradient of so many images of a client at that model."""
    subject = open_subject(run)
    partition = subject.experiment.data.split(subject.dataset.to(torch.device("cpu")))
    sizes = partition.sizes
    if not client < len(sizes) or sizes[client] < images:
        raise ConfigError(
            f"{run.folder}: there is no client {client} with {plural(images, 'image')}: it has "
            f"{len(sizes)} clients, counted from 0, with {int(sizes.min())} to {int(sizes.max())}"
        )
    if normalises_by_batch(subject.model):
        raise ConfigError(
            f"{run.folder}: its model normalises by the batch, so that what it says of an image "
            f'depends on others: attack one with model.norm = "batch" or "group"'
        )
    membership, prototypes = infer_membership(subject), prototype_leaks(subject, partition)
    if not sees_pictures(subject.model):
        return Leaks(run, membership, client, np.empty(0), (), prototypes)
    own = torch.from_numpy(partition.of(client)[:images]).long()
    chosen = subject.dataset.train[own.to(subject.dataset.train.labels.device)]
    return Leaks(run, membership, client, *_rebuilt(subject, chosen, steps), prototypes)


# Inversion


def _rebuilt(
    subject: Subject, chosen: Images, steps: int
) -> tuple[NDArray[np.float64], tuple[Rebuilt, ...]]:
    """The images, and what their gradient gives away."""
    model, preparation = subject.model, subject.dataset.preparation
    clean = preparation.clean(chosen.pixels)
    low, high = (preparation.clean(torch.full_like(chosen.pixels, end)) for end in (0, 255))

    def shown(pictures: Tensor) -> NDArray[np.float64]:
        flat = ((pictures - low) / (high - low)).clamp(0, 1).permute(0, 2, 3, 1)
        found: NDArray[np.float64] = flat.double().cpu().numpy()
        return found

    originals, rebuilt = shown(clean), []
    with evaluating(model):
        seen = gradient(model, clean, chosen.labels)
        for noise in NOISES:
            generator = torch.Generator().manual_seed(subject.experiment.federation.seed)
            blurred = [*_noised(seen, noise, generator)]
            found = invert(model, blurred, chosen.labels, (low, high), steps, generator)
            pictures = shown(found)
            rebuilt.append(Rebuilt(noise, pictures, tuple(map(psnr, pictures, originals))))
    return originals, tuple(rebuilt)


def gradient(
    model: nn.Module, images: Tensor, labels: Tensor, graph: bool = False
) -> tuple[Tensor, ...]:
    """Of the mean cross-entropy, as FedSGD sends it: the most that one step can tell."""
    loss = F.cross_entropy(model(images).logits, labels)
    moving = [live for live in model.parameters() if live.requires_grad]
    return torch.autograd.grad(loss, moving, create_graph=graph)


def _noised(seen: Sequence[Tensor], noise: float, generator: torch.Generator) -> Iterator[Tensor]:
    """With Gaussian noise, as [privacy] adds it if `clip` is the gradient's length."""
    length = _norm(seen)
    for tensor in seen:
        drawn = torch.randn(tensor.shape, generator=generator).to(tensor.device)
        yield tensor + noise * length * drawn


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()


def invert(
    model: nn.Module,
    seen: Sequence[Tensor],
    labels: Tensor,
    bounds: tuple[Tensor, Tensor],
    steps: int,
    generator: torch.Generator,
) -> Tensor:
    """Pictures whose gradient points as `seen` does, by Adam on the signs of their own gradient.
    The labels are known: a gradient of a few images shows them in the last layer."""
    low, high = bounds
    drawn = torch.rand(low.shape, generator=generator).to(low.device)
    guess = (low + drawn * (high - low)).requires_grad_()
    adam = torch.optim.Adam([guess], lr=STEP)
    falls = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    length = _norm(seen)
    for _ in range(steps):
        own = gradient(model, guess, labels, graph=True)
        along = torch.stack([(a * b).sum() for a, b in zip(own, seen, strict=True)]).sum()
        apart = 1 - along / (length * _norm(own)).clamp_min(1e-12)
        rough = (guess.diff(dim=2).abs().mean() + guess.diff(dim=3).abs().mean()) * SMOOTHNESS
        (slope,) = torch.autograd.grad(apart + rough, guess)
        guess.grad = slope.sign()
        adam.step()
        falls.step()
        with torch.no_grad():
            guess.clamp_(low, high)
    return guess.detach()


def psnr(picture: NDArray[np.float64], original: NDArray[np.float64]) -> float:
    """The peak signal-to-noise ratio in dB; at most 100."""
    error = float(((picture - original) ** 2).mean())
    return min(100.0, -10 * log10(max(error, 1e-10)))
