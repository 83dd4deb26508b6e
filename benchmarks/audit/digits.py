"""What each difference does to a run: theirs and ours on the digits, in the setting of `make run`.

    python -m benchmarks.audit digits      ten minutes on two cores; then the page

Theirs is here as mathematics: a subclass of our method with the one formula that differs, as
`DIFFERENCES` in page.py has it. All else is ours, so that nothing but the difference is compared.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import dcfl
from benchmarks.audit.page import DIGITS
from benchmarks.audit.visits import error
from dcfl.client import Batch, Client, perturbed, without_statistics
from dcfl.data import load_dataset
from dcfl.experiment import Experiment
from dcfl.messages import Tensors
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.method import Method, Objective, ServerStep
from dcfl.methods.scaffold import Scaffold
from dcfl.methods.zoo.feddyn import FedDyn
from dcfl.methods.zoo.fedlc import FedLC
from dcfl.methods.zoo.fedsam import FedSAM
from dcfl.runs.prepare import prepare
from dcfl.tensors import snapshot, subtract

SEEDS = range(5)
SETTING = {"data.alpha": 0.1, "federation.participation": 0.1, "output.report": False}


@dataclass(frozen=True)
class WeightsAsVariate(Scaffold):
    """Flower's: before its first visit a client's variate is what it received."""

    def _begun(self, client: Client) -> Client:
        memory = {name: client.received[name] for name, _ in client.federated()}
        shared = {name: torch.zeros_like(tensor) for name, tensor in memory.items()}
        return replace(client, memory=client.memory or memory, shared=client.shared or shared)

    def objective(self, client: Client) -> Objective:
        return super().objective(self._begun(client))

    def upload(self, client: Client) -> Tensors:
        return super().upload(self._begun(client))

    def remember(self, client: Client) -> Tensors:
        return super().remember(self._begun(client))


@dataclass(frozen=True)
class WithoutSquare(FedDyn):
    """FL-bench's: <h_i - w_received, w> alone."""

    def objective(self, client: Client) -> Objective:
        cross_entropy, drift = Method.objective(self, client), client.memory
        slopes = [
            (live, drift.get(name, 0.0) - client.received[name])
            for name, live in client.federated()
        ]

        def loss(batch: Batch) -> Tensor:
            lines = [(live * slope).sum() for live, slope in slopes]
            return cross_entropy(batch) + self.alpha * torch.stack(lines).sum()

        return loss


@dataclass(frozen=True)
class NormNotSquared(FedDyn):
    """PFLlib's: the pull back has the same length everywhere."""

    def objective(self, client: Client) -> Objective:
        cross_entropy, drift = Method.objective(self, client), client.memory
        pairs = [(name, live, client.received[name]) for name, live in client.federated()]

        def loss(batch: Batch) -> Tensor:
            away = torch.cat([(live - received).flatten() for _, live, received in pairs])
            lines = [(drift[name] * live).sum() for name, live, _ in pairs if drift]
            terms = torch.stack([torch.linalg.vector_norm(away) / 2, *lines])
            return cross_entropy(batch) + self.alpha * terms.sum()

        return loss


@dataclass(frozen=True)
class OtherSign(FedDyn):
    """fluke's: what a client remembers has the other sign, and alpha once more."""

    def remember(self, client: Client) -> Tensors:
        return {
            name: client.memory.get(name, 0.0)
            + self.alpha * (client.received[name] - live.detach())
            for name, live in client.federated()
        }


@dataclass(frozen=True)
class EverybodysCounts(FedLC):
    """PFLlib's: margins of the images of all clients together."""

    def objective(self, client: Client) -> Objective:
        everybody = load_dataset(Experiment().data).train.labels
        margins = self.tau * everybody.bincount(minlength=client.data.classes).double() ** -0.25

        def loss(batch: Batch) -> Tensor:
            logits = client.model(batch.images).logits
            return F.cross_entropy(logits - margins.to(logits.dtype), batch.labels)

        return loss


@dataclass(frozen=True)
class GradientsKept(FedSAM):
    """fluke's: the climb follows the sum of this gradient and the last step's."""

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        named = list(client.trainable())
        loss = objective(batch)
        fresh = torch.autograd.grad(loss, [live for _, live in named])
        ascent = [g + client.tally.get(n, 0.0) for (n, _), g in zip(named, fresh, strict=True)]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in ascent])) + 1e-16
        offsets = [(live, self.rho / norm * g) for (_, live), g in zip(named, ascent, strict=True)]
        with perturbed(offsets), without_statistics(client.model):
            Method.gradient(self, client, objective, batch)
        client.tally.update({n: live.grad.clone() for n, live in named if live.grad is not None})
        return loss


@dataclass(frozen=True)
class WeightsScaled(FedAvg):
    """fluke's FedNova: the factors weigh weights, not changes."""

    name: ClassVar = "weights-scaled"
    keeps_replies: ClassVar = True

    def server_step(self, step: ServerStep) -> ServerStep:
        steps = [Experiment().training.effective_steps(reply.num_steps) for reply in step.replies]
        sizes = [reply.num_examples for reply in step.replies]
        shares = [size / sum(sizes) for size in sizes]
        mean = sum(share * count for share, count in zip(shares, steps, strict=True))
        factors = [share * mean / count for share, count in zip(shares, steps, strict=True)]
        moved = {
            name: sum(
                factor * reply.weights[name].double()
                for factor, reply in zip(factors, step.replies, strict=True)
            )
            - weight
            for name, weight in step.weights.items()
        }
        return replace(step, direction=moved)


NOVA = {"server.aggregation": "fednova"}
# Framework and method: ours, theirs, and the settings of each besides.
PAIRS: dict[tuple[str, str], tuple[Method, Method, dict[str, str], dict[str, str]]] = {
    ("Flower baselines", "scaffold"): (Scaffold(), WeightsAsVariate(), {}, {}),
    ("FL-bench", "feddyn"): (FedDyn(), WithoutSquare(), {}, {}),
    ("PFLlib", "feddyn"): (FedDyn(), NormNotSquared(), {}, {}),
    ("fluke", "feddyn"): (FedDyn(), OtherSign(), {}, {}),
    ("PFLlib", "fedlc"): (FedLC(), EverybodysCounts(), {}, {}),
    ("fluke", "fedsam"): (FedSAM(), GradientsKept(), {}, {}),
    ("fluke", "fednova"): (*(FedAvg(), WeightsScaled(), NOVA, {"server.aggregation": "samples"}),),
}


def measure() -> None:
    rows = []
    for (framework, method), (ours, theirs, our_settings, their_settings) in PAIRS.items():
        row: dict[str, Any] = {"framework": framework, "method": method, "seeds": len(SEEDS)}
        found = defaultdict(list)
        for seed in SEEDS:
            before, ours_after, our_first = _trained(ours, our_settings, seed, 1)
            _, theirs_after, their_first = _trained(theirs, their_settings, seed, 1)
            moved = subtract(ours_after, before)
            found["apart"].append(error(subtract(theirs_after, before), moved))
            found["first"].append(_difference(their_first, our_first))
            our_last = _trained(ours, our_settings, seed, None)[2]
            their_last = _trained(theirs, their_settings, seed, None)[2]
            found["ours"].append(our_last)
            found["theirs"].append(their_last)
        rows.append({**row, **found})
        print(json.dumps(rows[-1]), flush=True)
    DIGITS.write_text(json.dumps(rows, indent=1) + "\n")


def _difference(theirs: float | None, ours: float | None) -> float | None:
    return None if theirs is None or ours is None else theirs - ours


def _trained(
    method: Method, settings: Mapping[str, str], seed: int, rounds: int | None
) -> tuple[Tensors, Tensors, float | None]:
    """The parameters before and after, and the EMA of the accuracy; None: it diverged."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = {**SETTING, **settings, "federation.seed": seed, "output.dir": f"{folder}/run"}
        if rounds is not None:
            chosen["federation.rounds"] = rounds
        experiment = dcfl.load_experiment(None, method=method, **chosen)
        model = prepare(experiment).model
        before = snapshot(model)
        names = [name for name, _ in model.named_parameters()]
        try:
            result = dcfl.run(experiment)
        except (dcfl.errors.Diverged, dcfl.errors.TooFewClients):
            return before, before, None
        after = {name: result.weights[name] for name in names}
        return {name: before[name] for name in names}, after, result.summary.ema_accuracy
