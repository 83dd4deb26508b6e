"""What others can find out from a run, measured by attacks on it: `dcfl attack`.

Gradient inversion (Geiping et al., "Inverting Gradients: How Easy Is It to Break Privacy in
Federated Learning?", NeurIPS 2020): whoever sees a gradient changes pictures until theirs points
the same way.

Who was in the training set: by a threshold on the loss (Yeom et al., "Privacy Risk in Machine
Learning: Analyzing the Connection to Overfitting", CSF 2018), because the model is surer of what it
has learnt; and by a likelihood ratio, in its cheap form (LiRA: Carlini et al., "Membership
Inference Attacks From First Principles", S&P 2022; offline, one variance), because it is surer than
models are that have not seen the image. With phi = log p / (1 - p), p being the probability of the
image's class, an image is ranked by

    phi(final model) - mean of phi(shadow models without the image)

which a single variance, for all images, does not change.

What prototypes tell: counts say which classes a client has, and the sum of a class with a single
image is that image's embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import log10, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dcfl.client import evaluating
from dcfl.data import Images, Preparation
from dcfl.data.client_data import ClientData, clean_batches, normalises_by_batch
from dcfl.data.splits.partition import Partition
from dcfl.engines.runner import model_for
from dcfl.errors import ConfigError, Diverged
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import FeatureModel
from dcfl.report.text import plural
from dcfl.runs.folder import RecordedRun
from dcfl.seeding import derived_seed, generator_for
from dcfl.tensors import clip_share, snapshot
from dcfl.trained.subject import Subject, embed, open_subject, sees_pictures

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
    """Training images of all clients against those that the run was judged by."""
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


# min_class_count, and the noise: its deviation in every number, as [privacy] would have it where
# the clip is just as long as what is sent.
PROTECTIONS = ((1, 0.0), (2, 0.0), (10, 0.0), (1, 0.01), (1, 0.1), (1, 1.0))


@dataclass(frozen=True)
class PrototypeLeak:
    """What the uploads of all clients tell, one each, under one protection."""

    min_class_count: int
    noise: float
    presence: float  # AUC: 1, who has which class is told exactly; 0.5, not at all
    singles: int  # sums of a single image that were sent
    cosine: float | None  # mean cosine of those with the image's embedding; None: there are none
    found: float | None  # share of those whose image is the nearest of all training images


def prototype_leaks(subject: Subject, partition: Partition) -> tuple[PrototypeLeak, ...]:
    """At the final model; none, if the method sends no prototypes."""
    vectors, labels = _vectors(subject), subject.dataset.train.labels.cpu()
    if vectors is None:
        return ()
    owned = [torch.from_numpy(partition.of(client)).long() for client in range(len(partition))]
    seed, classes = subject.experiment.federation.seed, subject.dataset.classes
    return tuple(
        told_by(vectors, labels, classes, owned, least, noise, seed) for least, noise in PROTECTIONS
    )


@torch.inference_mode()
def _vectors(subject: Subject) -> Tensor | None:
    model, dataset, found = subject.model, subject.dataset, []
    with evaluating(model):
        for batch in clean_batches(dataset.train, dataset.preparation, model):
            summed = subject.experiment.method.summed(model(batch.images))
            if summed is None:
                return None
            found.append(summed.cpu())
    return torch.cat(found)


def told_by(
    vectors: Tensor,
    labels: Tensor,
    classes: int,
    owned: Sequence[Tensor],
    least: int,
    noise: float,
    seed: int,
) -> PrototypeLeak:
    """`owned`: which images each client has."""
    generator = torch.Generator().manual_seed(seed)
    held, counted, sent, images = [], [], [], []
    for own in owned:
        member = F.one_hot(labels[own], classes)
        counts = member.sum(dim=0)
        kept = counts >= least
        total = member.T.to(vectors.dtype) @ vectors[own]
        sums = _as_private(total * kept[:, None], noise, generator)
        counted.append(_as_private((counts * kept).double(), noise, generator))
        held.append(counts > 0)
        for single in torch.nonzero(kept & (counts == 1)).flatten():
            sent.append(sums[single])
            images.append(own[labels[own] == single])
    present, claimed = torch.cat(held), torch.cat(counted)
    ranks = [(-claimed[which]).numpy() for which in (present, ~present)]
    # Where every client has every class, there is nothing to tell.
    presence = threshold_attack(*ranks).auc if len(ranks[1]) else 0.5
    if not sent:
        return PrototypeLeak(least, noise, presence, 0, None, None)
    alike = F.normalize(torch.stack(sent)) @ F.normalize(vectors).T  # [singles, images]
    true = torch.cat(images)
    own_cosine = alike.gather(1, true[:, None])[:, 0]
    nearest = alike.argmax(dim=1) == true
    return PrototypeLeak(
        least, noise, presence, len(sent), float(own_cosine.mean()), float(nearest.double().mean())
    )


def _as_private(exact: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """As [privacy] adds it to an upload of two tensors whose clips just fit."""
    drawn = torch.randn(exact.shape, generator=generator, dtype=exact.dtype)
    return drawn.mul_(noise * sqrt(2) * float(exact.norm())).add_(exact)


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
