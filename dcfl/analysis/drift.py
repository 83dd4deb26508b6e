"""How far a local round takes the clients from the global model, in weights and in features.

Some clients train one more round from the final model, with the run's own method, settings and
engine. A model file has neither what the server shares (prototypes) nor what clients remember
(MOON, SCAFFOLD). Where the method has either, the same clients first train a rehearsal round from
the same weights, of which only these are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl import tensors as named
from dcfl.analysis.similarity import drawn
from dcfl.client import frozen
from dcfl.data import Images
from dcfl.data.augment import Preparation
from dcfl.engines.engine import Engine, Session
from dcfl.engines.placement import Placement
from dcfl.engines.runner import client_runner, reproducible
from dcfl.errors import ClientFailure, ConfigError
from dcfl.experiment import AttackSettings, Experiment, FaultSettings
from dcfl.federation import sample_cohort
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import Method
from dcfl.models import FeatureModel
from dcfl.privacy import PrivacySettings
from dcfl.runs.connect import connect
from dcfl.runs.prepare import placement_for, resolved
from dcfl.server.compression import CompressionSettings
from dcfl.server.server import Replies
from dcfl.system.transfers import to_device, to_host
from dcfl.trained.subject import Subject, embed

MOST_IMAGES = 2000  # test images whose features are compared
MOST_NUMBERS = 250_000_000  # in all updates that are compared with each other: 1 GB


@dataclass(frozen=True)
class ClientDrift:
    client: int
    examples: int
    steps: int
    weights: float  # ||w_k - w|| / ||w||, over the trainable parameters
    features: float  # mean over test images of 1 - cos(z_k, z)


@dataclass(frozen=True)
class Drift:
    round: int  # the extra round: one after the run's last
    images: int  # test images whose features were compared
    rehearsed: bool
    clients: tuple[ClientDrift, ...]
    update_cosines: NDArray[np.float64]  # between the clients' w_k - w, over all pairs of those
    # that have moved, as far as memory allows
    failures: tuple[str, ...]

    @property
    def weights(self) -> float:
        return _mean(client.weights for client in self.clients)

    @property
    def features(self) -> float:
        return _mean(client.features for client in self.clients)

    @property
    def agreement(self) -> float:
        return _mean(self.update_cosines)

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["update_pairs"] = len(told.pop("update_cosines"))
        means = {"weights": self.weights, "features": self.features}
        return {**told, **means, "update_cosine": self.agreement}


def _mean(values: Iterable[float]) -> float:
    known = [*values]
    return float(np.mean(known)) if known else math.nan


def measure_drift(
    subject: Subject, clients: int = 10, tell: Callable[[str], None] = lambda _: None
) -> Drift:
    round = subject.round + 1
    seed = subject.experiment.federation.seed
    with _honest_clients(subject, clients) as (engine, count):
        cohort = sample_cohort(count, min(clients / count, 1.0), seed, round)
        weights = to_host(named.canonical(named.snapshot(subject.model)))
        method = subject.experiment.method
        shared: Tensors = {}
        if rehearsed := keeps_state(method):
            tell(f"{len(cohort)} clients rehearse")
            shared = _rehearsed(engine, method, Broadcast(round, weights, {}), cohort)
        tell(f"{len(cohort)} clients train")
        broadcast = Broadcast(round, weights, shared)
        test = subject.dataset.test
        images = test[drawn(len(test), MOST_IMAGES, seed).to(test.labels.device)]
        names = trainable(subject.model)
        beheld = Beheld(subject.model, names, images, subject.dataset.preparation)
        return replace(compare_clients(beheld, engine, broadcast, cohort), rehearsed=rehearsed)


def keeps_state(method: Method) -> bool:
    return method.overrides("upload") or method.overrides("remember")


@contextmanager
def _honest_clients(subject: Subject, most: int) -> Iterator[tuple[Engine, int]]:
    """The run's engine, ready to train one more round, and how many clients it has, of which `most`
    will train at a time."""
    dataset = subject.dataset.to(torch.device("cpu"))
    partition = subject.experiment.data.split(dataset)
    if subject.run.partition_sha256 not in ("", partition.sha256):
        raise ConfigError(
            f"{subject.run.folder}: the training images, or how they are split, are not those of "
            f"the run any more: leave the drift out with --no-drift"
        )
    experiment = resolved(_honest(subject.experiment), dataset, partition)
    runner = client_runner(experiment, dataset, partition)
    device = subject.dataset.test.labels.device
    if device.type == "cpu":
        on_cpu = replace(experiment, engine=replace(experiment.engine, device="cpu"))
        placement = placement_for(on_cpu, runner, most)
    else:  # this process uses the GPU already, so no worker could
        placement = Placement([device], "one GPU")
    with TemporaryDirectory() as folder, reproducible(experiment.engine.threads):
        session = Session("analysis", experiment, runner, placement, Path(folder) / "memories")
        with connect(session) as engine:
            yield engine, len(partition)


def _honest(experiment: Experiment) -> Experiment:
    """Without faults, attacks, privacy and compression, which are about what becomes of a reply:
    the drift is that of honest clients whose models nobody has clipped, blurred or rounded.
    Without initial weights too: all weights come from the trained model."""
    return replace(
        experiment,
        model=replace(experiment.model, weights="", weights_skip=()),
        faults=FaultSettings(),
        attack=AttackSettings(),
        privacy=PrivacySettings(),
        compression=CompressionSettings(),
        engine=replace(experiment.engine, name="embedded", compile=False),
        federation=replace(experiment.federation, deadline=0.0),
    )


def _rehearsed(engine: Engine, method: Method, broadcast: Broadcast, cohort: list[int]) -> Tensors:
    """What the server would share if there were no other clients. What these remember stays with
    the engine."""
    replies, replied = Replies(method, "uniform", ()), list[int]()
    for reply in engine.run(broadcast, cohort):
        if isinstance(reply, ClientUpdate):
            replies.add(reply, broadcast.weights)
            replied.append(reply.client)
    engine.settle(replied)
    return replies.merged({}, len(replied), rejected=()) if replied else {}


class Beheld(NamedTuple):
    """A global model, and the images on which clients' models are compared with it."""

    model: FeatureModel
    trainable: list[str]  # the parameters that clients may change
    images: Images
    preparation: Preparation


def compare_clients(
    beheld: Beheld, engine: Engine, broadcast: Broadcast, cohort: list[int]
) -> Drift:
    """Let the cohort train from the broadcast. The engine is not told to keep anything of it."""
    model, names, images, preparation = beheld
    start = flat(broadcast.weights, names)
    global_embeddings, _ = embed(model, images, preparation)
    drifts: list[ClientDrift] = []
    failures: list[str] = []
    directions: list[Tensor] = []  # of clients that have moved
    for reply in engine.run(broadcast, cohort):
        if isinstance(reply, ClientFailure):
            failures.append(str(reply))
            continue
        # Finished before the next reply is requested, which may reuse this one's memory.
        moved = flat(reply.weights, names) - start
        length = moved.norm()
        if length > 0 and (len(directions) + 1) * len(moved) <= MOST_NUMBERS:
            directions.append((moved / length).float())
        local = frozen(model, to_device(reply.weights, images.labels.device))
        local_embeddings, _ = embed(local, images, preparation)
        turned = mean_turn(global_embeddings, local_embeddings)
        way = float(length / start.norm())
        drifts.append(ClientDrift(reply.client, reply.num_examples, reply.num_steps, way, turned))
    cosines = pairwise_cosines(directions)
    return Drift(broadcast.round, len(images), False, tuple(drifts), cosines, tuple(failures))


def trainable(model: FeatureModel) -> list[str]:
    return [name for name, live in model.named_parameters() if live.requires_grad]


def flat(tensors: Tensors, names: list[str]) -> Tensor:
    """The tensors as one vector, float64 on the CPU."""
    return torch.cat([tensors[name].detach().double().cpu().reshape(-1) for name in names])


def mean_turn(before: Tensor, after: Tensor) -> float:
    return float(1 - F.cosine_similarity(before.double(), after.double(), dim=1).mean())


def pairwise_cosines(directions: list[Tensor]) -> NDArray[np.float64]:
    return np.array([float(a @ b) for a, b in combinations(directions, 2)], dtype=np.float64)
