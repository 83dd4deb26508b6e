"""How far a local round takes the clients from the global model, in weights and in features.

Some clients train one more round from the final model, by the run's own method and settings and
through its own engine. A finished run has kept neither what the server shares (prototypes) nor what
clients remember (MOON, SCAFFOLD). So where the method has such things, the same clients first train
a rehearsal from the same weights, which leaves nothing but those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dcfl import tensors as named
from dcfl.client import frozen
from dcfl.engines.engine import Engine, Session
from dcfl.engines.placement import Placement, place
from dcfl.engines.runner import client_runner, reproducible, two_images
from dcfl.errors import ClientFailure, ConfigError
from dcfl.experiment import AttackSettings, FaultSettings
from dcfl.federation import sample_cohort
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import Method
from dcfl.privacy import PrivacySettings
from dcfl.runs.connect import connect
from dcfl.runs.prepare import resolved
from dcfl.studies.analysis.features import Subject, embed, some_images

MOST_IMAGES = 2000  # test images whose features are compared
MOST_NUMBERS = 250_000_000  # of updates that are kept to be compared with each other: 1 GB


@dataclass(frozen=True)
class ClientDrift:
    client: int
    examples: int
    steps: int
    weights: float  # ||w_k - w|| / ||w||, over the trainable parameters
    features: float  # mean over test images of 1 - cos(z_k, z)


@dataclass(frozen=True)
class Drift:
    round: int  # the one that was trained for this: the run's last and one
    images: int  # test images whose features were compared
    rehearsed: bool
    clients: tuple[ClientDrift, ...]
    update_cosines: NDArray[np.float64]  # between the clients' w_k - w, over all pairs of clients
    failures: tuple[str, ...]

    @property
    def weights(self) -> float:
        """Mean over the clients."""
        return _mean([client.weights for client in self.clients])

    @property
    def features(self) -> float:
        """Mean over the clients."""
        return _mean([client.features for client in self.clients])

    @property
    def agreement(self) -> float:
        """Mean cosine between the updates of two clients."""
        return _mean(self.update_cosines.tolist())

    def as_json(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "images": self.images,
            "rehearsed": self.rehearsed,
            "weights": self.weights,
            "features": self.features,
            "update_cosine": self.agreement,
            "update_pairs": len(self.update_cosines),
            "clients": [asdict(client) for client in self.clients],
            "failures": list(self.failures),
        }


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def measure_drift(
    subject: Subject, clients: int = 10, tell: Callable[[str], None] = lambda _: None
) -> Drift:
    """Of at most so many clients, drawn as a round's cohort is."""
    round = subject.round + 1
    seed = subject.experiment.federation.seed
    with _engine(subject, clients) as (engine, population, placed):
        cohort = sample_cohort(population, min(clients / population, 1.0), seed, round)
        weights = placed(named.canonical(named.snapshot(subject.model)))
        method, shared = subject.experiment.method, dict[str, Tensor]()
        rehearsed = keeps_state(method)
        if rehearsed:
            tell(f"{len(cohort)} clients rehearse")
            shared = placed(_rehearsed(engine, method, Broadcast(round, weights, {}), cohort))
        tell(f"{len(cohort)} clients train")
        return _compared(subject, engine, Broadcast(round, weights, shared), cohort, rehearsed)


def keeps_state(method: Method) -> bool:
    """Whether a round depends on more than the global weights."""
    kind = type(method)
    return kind.upload is not Method.upload or kind.remember is not Method.remember


@contextmanager
def _engine(
    subject: Subject, clients: int
) -> Iterator[tuple[Engine, int, Callable[[Tensors], dict[str, Tensor]]]]:
    """The run's engine, how many clients there are, and what puts tensors where it wants them.

    The drift is that of honest clients whose models nobody has clipped or blurred: faults, attacks
    and privacy are about what becomes of a reply.
    """
    dataset = subject.dataset.to(torch.device("cpu"))
    partition = subject.experiment.data.split(dataset)
    known = subject.run.partition_sha256
    if known and known != partition.sha256:
        raise ConfigError(
            f"{subject.run.folder}: the training images, or how they are split, are not those of "
            f"the run any more: leave the drift out with --no-drift"
        )
    experiment = replace(
        subject.experiment,
        faults=FaultSettings(),
        attack=AttackSettings(),
        privacy=PrivacySettings(),
        engine=replace(subject.experiment.engine, name="embedded", compile=False),
        federation=replace(subject.experiment.federation, deadline=0.0),
    )
    experiment = resolved(experiment, dataset, partition)
    runner = client_runner(experiment, dataset, partition)
    device = subject.dataset.test.labels.device
    if device.type == "cpu":
        engine, batch = experiment.engine, experiment.training.batch_size
        placement = place(
            engine.workers, engine.threads, "cpu", clients, runner.model, two_images(dataset), batch
        )
    else:  # which this process uses already, so that no worker could
        placement = Placement([device], "one GPU")
    with TemporaryDirectory() as folder, reproducible(experiment.engine.threads):
        session = Session("analysis", experiment, runner, placement, Path(folder) / "memories")
        with connect(session) as connected:
            yield (
                connected,
                len(partition),
                lambda tensors: {name: tensor.to(device) for name, tensor in tensors.items()},
            )


def _rehearsed(engine: Engine, method: Method, broadcast: Broadcast, cohort: list[int]) -> Tensors:
    """What the server would share if these clients were all there are; what they remember stays
    with the engine."""
    replies = [reply for reply in engine.run(broadcast, cohort) if isinstance(reply, ClientUpdate)]
    engine.settle([reply.client for reply in replies])
    return method.merge({}, [reply.upload for reply in replies], len(replies)) if replies else {}


def _compared(
    subject: Subject, engine: Engine, broadcast: Broadcast, cohort: list[int], rehearsed: bool
) -> Drift:
    images, preparation = some_images(subject, MOST_IMAGES), subject.dataset.preparation
    trainable = [name for name, live in subject.model.named_parameters() if live.requires_grad]
    start, here = flat(broadcast.weights, trainable), embed(subject.model, images, preparation)[0]
    found: list[ClientDrift] = []
    failures: list[str] = []
    directions: list[Tensor] = []  # of those that have moved
    for reply in engine.run(broadcast, cohort):
        if isinstance(reply, ClientFailure):
            failures.append(str(reply))
            continue
        # Done with before the next is asked for: its memory may be used again then.
        moved = flat(reply.weights, trainable) - start
        length = moved.norm()
        if length > 0 and (len(directions) + 1) * len(moved) <= MOST_NUMBERS:
            directions.append((moved / length).float())
        local = frozen(subject.model, reply.weights)
        there, _ = embed(local, images, preparation)
        drift = ClientDrift(
            reply.client,
            reply.num_examples,
            reply.num_steps,
            float(length / start.norm()),
            turned(here, there),
        )
        found.append(drift)
    return Drift(
        broadcast.round,
        len(images),
        rehearsed,
        tuple(found),
        pairwise_cosines(directions),
        tuple(failures),
    )


def flat(tensors: Tensors, names: list[str]) -> Tensor:
    """As one vector, float64 on the CPU."""
    return torch.cat([tensors[name].detach().double().cpu().reshape(-1) for name in names])


def turned(here: Tensor, there: Tensor) -> float:
    """Mean 1 - cos between the rows of two matrices [n, d]."""
    return float(1 - F.cosine_similarity(here.double(), there.double(), dim=1).mean())


def pairwise_cosines(directions: list[Tensor]) -> NDArray[np.float64]:
    """Between all pairs of unit vectors."""
    return np.array([float(a @ b) for a, b in combinations(directions, 2)], dtype=np.float64)
