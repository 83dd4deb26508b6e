"""FedGen: the server learns to make features of each class, and clients train their classifiers on
them.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML
2021. G makes features of a class from noise e, f is the classifier, n_kc what client k has of c:

    server:  min_G  E_{c, e}  sum_k s_kc L_CE(f_k(G(c, e)), c) + diversity * exp(-mean |de| |dG|)
             s_kc = (1 + n_kc) / sum_j (1 + n_jc)
    client:  L = L_CE + weight * E_{c, e} L_CE(f(G(c, e)), c)
                      + likeness * KL(f(G(y, e)) || f(z))        z, y: the batch's images, labels

The loss is that of the released code. Both weights, and the rate of the server's Adam, shrink by
`fade` after each round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError, ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.method import Cost, Method, Objective, ServerStep
from dcfl.methods.zoo.fedlc import class_counts
from dcfl.settings import key
from dcfl.system.transfers import on_device
from dcfl.tensors import apart, copies, snapshot, together

NAMES = ("classifier.weight", "classifier.bias")
DECAY, MEMORIES, TINY = 0.01, (0.9, 0.999), 1e-8  # of Adam


class Generator(nn.Module):
    """Features, as the classifier gets them, from classes [B] and noise [B, n]."""

    def __init__(
        self, classes: int, noise: int, hidden: int, width: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.classes = classes
        self.body = nn.Linear(noise + classes, hidden, dtype=dtype)
        self.norm = nn.BatchNorm1d(hidden, dtype=dtype)
        self.head = nn.Linear(hidden, width, dtype=dtype)

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        which = F.one_hot(labels, self.classes).to(noise.dtype)
        features: Tensor = self.head(self.norm(self.body(torch.cat([noise, which], dim=1))).relu())
        return features


@dataclass(frozen=True)
class FedGen(Method):
    """The server learns to make features of each class, on which clients train their classifier."""

    weight: float = key(10.0, ge=0)  # of the loss on features of all classes
    # of the distance between what is predicted for an image and for features of its class
    likeness: float = key(10.0, ge=0)
    fade: float = key(0.98, gt=0, le=1)  # factor on both, and on `lr`, after each round
    # Features in a step, at clients and at the server, which compares all pairs of them.
    samples: int = key(32, ge=2, le=512)
    steps: int = key(50, ge=1, le=10_000)  # of the generator in a round
    lr: float = key(3e-4, gt=0)  # of these steps, by Adam
    diversity: float = key(1.0, ge=0)  # weight of the term that keeps features of a class apart
    noise: int = key(32, ge=1, le=10_000)  # numbers that features are made from
    hidden: int = key(256, ge=1, le=10_000)  # units of the generator

    equation: ClassVar = (
        "L = L_CE + weight * L_CE(f(G(c)), c) + likeness * KL(f(G(y)) || f(z)),  "
        "G: learnt on the server"
    )
    cost: ClassVar = Cost(
        up="8 * classes", down="4 * (256 * (classes + 37) + 257 * d) + classes + 8"
    )
    neutral: ClassVar = {"weight": 0.0, "likeness": 0.0}
    keeps_replies: ClassVar = True
    any_aggregation: ClassVar = False

    @property
    def _off(self) -> bool:
        return not (self.weight or self.likeness)

    def objective(self, client: Client) -> Objective:
        classifier = getattr(client.model, "classifier", None)
        if not isinstance(classifier, nn.Linear) or not {*NAMES} <= dict(client.trainable()).keys():
            raise ConfigError("fedgen needs a trained linear layer `classifier` with a bias")
        if not client.shared or self._off:
            return super().objective(client)
        # Noise and teacher belong to a step, however often its loss is computed.
        seed, teachers = int(torch.randint(2**62, ())), dict[int, list[Tensor]]()
        state, known = self._parts(client.shared)
        generator = self._generator(state).eval().requires_grad_(False)
        fade = self.fade ** (client.round - 1)

        def loss(batch: Batch) -> Tensor:
            drawn, logits = torch.Generator(), client.model(batch.images).logits
            drawn.manual_seed(seed + client.num_steps)
            if client.num_steps not in teachers:
                teachers.clear()
                teachers[client.num_steps] = [*copies(classifier.state_dict()).values()]
            alike = generator(batch.labels, self._noise(batch.labels, logits.dtype, drawn))
            goal = F.linear(alike, *teachers[client.num_steps]).softmax(dim=1)
            places = on_device(torch.rand(self.samples, generator=drawn), known.device)
            labels = chosen(known, places)
            features = generator(labels, self._noise(labels, logits.dtype, drawn))
            made = F.cross_entropy(classifier(features), labels)
            likeness = F.kl_div(logits.log_softmax(dim=1), goal, reduction="batchmean")
            cross_entropy = F.cross_entropy(logits, batch.labels)
            return cross_entropy + fade * (self.weight * made + self.likeness * likeness)

        return loss

    def _noise(self, labels: Tensor, dtype: torch.dtype, drawn: torch.Generator) -> Tensor:
        made = torch.rand(len(labels), self.noise, generator=drawn, dtype=dtype)
        return on_device(made, labels.device)

    def upload(self, client: Client) -> Tensors:
        return {"counts": class_counts(client) * client.training.all_epochs}

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {"counts": torch.empty(classes, dtype=torch.int64, device="meta")}

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        counts = update.upload["counts"]
        if counts.min() < 0 or counts.sum() != training.all_epochs * update.num_examples:
            raise ProtocolError("counts of images per class that cannot be")

    def server_step(self, step: ServerStep) -> ServerStep:
        if self._off or NAMES[0] not in step.weights:  # personal: the server sees no classifier
            return step
        weights, biases = (torch.stack([r.weights[name] for r in step.replies]) for name in NAMES)
        counts = torch.stack([reply.upload["counts"] for reply in step.replies])
        shares = (1 + counts).to(weights.dtype) / (1 + counts).sum(dim=0)
        held = counts.amax(dim=0) > 0
        if step.shared:
            state, known = self._parts(step.shared)
            generator, known = self._generator(copies(state)), known | held
        else:
            generator, known = self.first(weights[0]), held
        drawn = torch.Generator().manual_seed(step.round)
        lives = dict(generator.named_parameters())
        kept, lr = dict(step.kept), self.lr * self.fade ** (step.round - 1)
        for _ in range(self.steps):
            labels = chosen(held, torch.rand(self.samples, generator=drawn))
            noise = self._noise(labels, weights.dtype, drawn)
            features = generator(labels, noise)
            logits = features @ weights.mT + biases[:, None]  # [clients, samples, classes]
            losses = F.cross_entropy(logits.mT, labels.expand(len(logits), -1), reduction="none")
            loss = (shares[:, labels] * losses).mean(dim=1).sum()
            near = -_apart(noise).square().mean(dim=2) * _apart(features).abs().mean(dim=2)
            loss = loss + self.diversity * near.mean().exp()
            adam(lives, torch.autograd.grad(loss, [*lives.values()]), kept, lr)
        shared = together(generator=snapshot(generator), classes={"known": known})
        return replace(step, shared=shared, kept=kept)

    def _parts(self, shared: Tensors) -> tuple[Tensors, Tensor]:
        state, classes = apart(shared, "generator", "classes")
        return state, classes["known"]

    def first(self, weight: Tensor) -> Generator:
        """The same in all runs, as the server knows no seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            classes, width = weight.shape
            return Generator(classes, self.noise, self.hidden, width, weight.dtype)

    def _generator(self, state: Tensors) -> Generator:
        """With these tensors themselves."""
        width, hidden = state["head.weight"].shape
        classes = state["body.weight"].shape[1] - self.noise
        with torch.device("meta"):
            made = Generator(classes, self.noise, hidden, width, state["head.bias"].dtype)
        made.load_state_dict(state, assign=True)
        return made


def chosen(among: Tensor, places: Tensor) -> Tensor:
    """Classes out of those that are true, by numbers from 0 to 1. Where they are: without a
    wait."""
    up_to = among.cumsum(dim=0)
    return torch.searchsorted(up_to, (places * up_to[-1]).floor().long(), right=True)


def _apart(rows: Tensor) -> Tensor:
    """The difference of each two rows: [B, B, n]."""
    return rows[:, None] - rows


@torch.no_grad()
def adam(
    lives: Mapping[str, Tensor], slopes: Sequence[Tensor], kept: dict[str, Tensor], lr: float
) -> None:
    """A step, in place; torch's own would import its compiler."""
    kept["steps"] = steps = kept.get("steps", torch.zeros((), dtype=torch.int64)) + 1
    for (name, live), slope in zip(lives.items(), slopes, strict=True):
        down = slope + DECAY * live
        memories = []
        for memory, power, moment in zip(MEMORIES, (1, 2), ("mean", "square"), strict=True):
            before = kept.get(f"{moment}/{name}", torch.zeros_like(live))
            kept[f"{moment}/{name}"] = memory * before + (1 - memory) * down**power
            memories.append(kept[f"{moment}/{name}"] / (1 - memory ** int(steps)))
        live.sub_(lr * memories[0] / (memories[1].sqrt() + TINY))
