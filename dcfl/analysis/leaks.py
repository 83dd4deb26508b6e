"""What others can find out from a run, measured by attacks on it: `dcfl attack`.

Gradient inversion (Geiping et al., "Inverting Gradients: How Easy Is It to Break Privacy in
Federated Learning?", NeurIPS 2020): whoever sees a gradient changes pictures until theirs points
the same way. Who was in the training set: `membership.py`. What prototypes tell:
`prototype_leaks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import log10
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dcfl.analysis.membership import Membership, infer_membership
from dcfl.analysis.prototype_leaks import PrototypeLeak, prototype_leaks
from dcfl.client import evaluating
from dcfl.data import Images, Preparation
from dcfl.data.client_data import normalises_by_batch
from dcfl.errors import ConfigError
from dcfl.report.text import plural
from dcfl.runs.folder import RecordedRun
from dcfl.tensors import clip_share
from dcfl.trained.subject import Subject, open_subject, sees_pictures

NOISES = (0.01, 0.1, 1.0)  # at each client: deviation, as a multiple of the gradient's length
SERVER_NOISE = 1.0  # at the server: as a multiple of the clip
CLIP = 0.5  # as a multiple of the gradient's length
MOST_SUMMED = 10  # clients; sums of more hide each better
SERVER, RECEIVERS = "the server", "whoever gets the models"
SMOOTHNESS = 1e-3  # weight of the total variation: real pictures have little
STEP = 0.1  # of Adam, in deviations of a pixel


class Rebuilt(NamedTuple):
    """What somebody finds of some images. Pictures are [n, H, W, C] in 0 to 1."""

    protection: str
    reader: str
    seen: str
    noise: float
    pictures: NDArray[np.float64]
    psnr: tuple[float, ...]  # dB, of each picture


@dataclass(frozen=True)
class Leaks:
    run: RecordedRun
    membership: tuple[Membership, ...]  # by the loss; by LiRA, if asked for
    client: int
    originals: NDArray[np.float64]
    rebuilt: tuple[Rebuilt, ...]  # none, where the model sees no pictures
    prototypes: tuple[PrototypeLeak, ...]  # none, where the method sends none

    def as_json(self) -> dict[str, Any]:
        return {
            "membership": [asdict(one) for one in self.membership],
            "client": self.client,
            "inversion": [
                {name: told for name, told in one._asdict().items() if name != "pictures"}
                for one in self.rebuilt
            ],
            "prototypes": [asdict(one) for one in self.prototypes],
        }


def attack_run(
    run: RecordedRun,
    client: int,
    images: int,
    steps: int,
    shadows: int,
    tell: Callable[[str], None],
) -> Leaks:
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
    membership = infer_membership(subject, shadows, tell)
    prototypes = prototype_leaks(subject, partition)
    if not sees_pictures(subject.model):
        return Leaks(run, membership, client, np.empty(0), (), prototypes)
    device = subject.dataset.train.labels.device
    cohort = [
        subject.dataset.train[torch.from_numpy(partition.of(one)[:images]).long().to(device)]
        for one in _cohort(subject, sizes, client, images)
    ]
    return Leaks(run, membership, client, *_rebuilt(subject, cohort, steps), prototypes)


# Inversion


def _cohort(subject: Subject, sizes: NDArray[np.int64], client: int, images: int) -> list[int]:
    """The client, and the next ones that have as many images: as many as in a round."""
    asked = subject.experiment.federation.cohort_of(len(sizes))
    others = [*range(client + 1, len(sizes)), *range(client)]
    fitting = [one for one in others if sizes[one] >= images]
    return [client, *fitting[: max(1, min(asked, MOST_SUMMED) - 1)]]


class _View(NamedTuple):
    """What somebody sees of a round."""

    protection: str
    reader: str
    seen: str
    noise: float
    clients: int  # whose pictures are in it
    exact: Sequence[Tensor]  # before the noise
    deviation: float = 0.0  # of the noise


def _views(bare: Sequence[Sequence[Tensor]]) -> Iterator[_View]:
    """Of the gradients of a cohort's clients; the first one is attacked."""
    clients, length = len(bare), float(_norm(bare[0]))
    clip = CLIP * length
    clipped = [[one * clip_share(each, clip) for one in each] for each in bare]
    short = f"the gradient, clipped to {CLIP:g} of its length"
    yield _View("no protection", SERVER, "the bare gradient", 0.0, 1, bare[0])
    yield _View("clipping", SERVER, short, 0.0, 1, clipped[0])
    for noise in NOISES:
        seen = f"the gradient with noise {noise:g}"
        yield _View("noise at each client", SERVER, seen, noise, 1, bare[0], noise * length)
    yield _View("noise at the server", SERVER, short, 0.0, 1, clipped[0])
    seen = f"the sum of {clients} clipped gradients with noise {SERVER_NOISE:g}"
    noisy = (SERVER_NOISE, clients, _sum(clipped), SERVER_NOISE * clip)
    yield _View("noise at the server", RECEIVERS, seen, *noisy)
    yield _View("noise in shares", SERVER, seen, *noisy)
    seen = f"the sum of {clients} gradients"
    yield _View("secure aggregation", SERVER, seen, 0.0, clients, _sum(bare))


def _sum(clients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(each).sum(dim=0) for each in zip(*clients, strict=True)]


def _rebuilt(
    subject: Subject, cohort: Sequence[Images], steps: int
) -> tuple[NDArray[np.float64], tuple[Rebuilt, ...]]:
    """The first client's images, and what each view of the round gives away of them."""
    model, preparation, own = subject.model, subject.dataset.preparation, len(cohort[0])
    everybody = Images(
        torch.cat([one.pixels for one in cohort]), torch.cat([one.labels for one in cohort])
    )
    originals = _shown(preparation.clean(cohort[0].pixels), _ends(cohort[0], preparation))
    found: dict[str, NDArray[np.float64]] = {}
    with evaluating(model):
        views = [
            *_views([gradient(model, preparation.clean(one.pixels), one.labels) for one in cohort])
        ]
        for view in {view.seen: view for view in views}.values():
            sought = everybody[: view.clients * own]
            ends, labels = _ends(sought, preparation), sought.labels  # which an attacker knows
            generator = torch.Generator().manual_seed(subject.experiment.federation.seed)
            seen = [*_noised(view.exact, view.deviation, generator)]
            pictures = _shown(invert(model, seen, labels, ends, steps, generator), ends)
            found[view.seen] = nearest(pictures, labels.cpu().numpy(), originals)
    return originals, tuple(
        Rebuilt(*view[:4], found[view.seen], tuple(map(psnr, found[view.seen], originals)))
        for view in views
    )


def _ends(images: Images, preparation: Preparation) -> tuple[Tensor, Tensor]:
    """Black and white, as the model sees them."""
    low, high = (preparation.clean(torch.full_like(images.pixels, end)) for end in (0, 255))
    return low, high


def _shown(pictures: Tensor, ends: tuple[Tensor, Tensor]) -> NDArray[np.float64]:
    low, high = ends
    flat = ((pictures - low) / (high - low)).clamp(0, 1).permute(0, 2, 3, 1)
    found: NDArray[np.float64] = flat.double().cpu().numpy()
    return found


def nearest(
    pictures: NDArray[np.float64], labels: NDArray[np.int64], originals: NDArray[np.float64]
) -> NDArray[np.float64]:
    """For each original the picture of its class that is most like it: a gradient does not tell in
    which order its images are. The originals' labels come first."""
    chosen = []
    for original, label in zip(originals, labels, strict=False):
        alike = pictures[labels == label]
        chosen.append(alike[((alike - original) ** 2).mean(axis=(1, 2, 3)).argmin()])
    return np.stack(chosen)


def gradient(
    model: nn.Module, images: Tensor, labels: Tensor, graph: bool = False
) -> tuple[Tensor, ...]:
    """Of the mean cross-entropy, as FedSGD sends it: the most that one step can tell."""
    loss = F.cross_entropy(model(images).logits, labels)
    moving = [live for live in model.parameters() if live.requires_grad]
    return torch.autograd.grad(loss, moving, create_graph=graph)


def _noised(
    seen: Sequence[Tensor], deviation: float, generator: torch.Generator
) -> Iterator[Tensor]:
    for tensor in seen:
        drawn = torch.randn(tensor.shape, generator=generator).to(tensor.device)
        yield tensor + deviation * drawn


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
