"""The checker catches the mistakes that published federated code is full of."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dcfl.client import Batch, Client
from dcfl.errors import ConfigError, ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods import METHODS, Method, Objective, ServerStep
from dcfl.methods.prototypes import PrototypeMethod
from dcfl.models.networks import Norm
from dcfl.testing import contract
from dcfl.testing.contract import Verdict, check_method
from dcfl.testing.properties import PROPERTIES

ZERO = "differs from FedAvg otherwise"
NEUTRAL = "equals FedAvg at its neutral value"
SLOPE = "gradient agrees with finite differences"
AGAIN = "gives the same bits again"
STATISTICS = "BatchNorm moves with training alone and is averaged"
BOUNDED = "keeps its upload within the sensitivity it claims"
CALLED = "defines nothing that nobody calls"
UNTOUCHED = "leaves received, shared, memory and data untouched"


def judged(method: type[Method], property: str, norm: Norm = "batch") -> Verdict:
    """On one property alone."""
    (verdict,) = contract._verdicts({property: partial(PROPERTIES[property], method, norm)})
    return verdict


@dataclass(frozen=True)
class Broken(Method):
    """A base for methods with one mistake each: the proximal term, unless overridden."""

    mu: float = 1.0

    def term(self, client: Client, batch: Batch) -> Tensor:
        return self.distance(client, client.received)

    def distance(self, client: Client, anchor: Tensors) -> Tensor:
        return torch.stack([(w - anchor[n]).square().sum() for n, w in client.trainable()]).sum()

    def objective(self, client: Client) -> Objective:
        cross_entropy = super().objective(client)

        def loss(batch: Batch) -> Tensor:
            return cross_entropy(batch) + self.mu * self.term(client, batch)

        return loss


@dataclass(frozen=True)
class LiveReference(Broken):
    """FedProx with references to the live parameters as "global" ones: identically zero."""

    def term(self, client: Client, batch: Batch) -> Tensor:
        return self.distance(client, dict(client.model.named_parameters()))


@dataclass(frozen=True)
class Detached(Broken):
    """The term is in the loss and not in its gradient."""

    def term(self, client: Client, batch: Batch) -> Tensor:
        return self.distance(client, client.received).detach()


@dataclass(frozen=True)
class HalfDetached(Broken):
    """Some of the gradient is missing."""

    def term(self, client: Client, batch: Batch) -> Tensor:
        z = client.model(batch.images).embedding
        return (z * z.detach()).sum(dim=1).mean()


@dataclass(frozen=True)
class NotNeutral(Broken):
    """mu = 0 is not FedAvg, because something else is always on."""

    def objective(self, client: Client) -> Objective:
        inner = super().objective(client)
        return lambda batch: inner(batch) + 1e-3 * self.distance(client, client.received)


@dataclass(frozen=True)
class Unseeded(Broken):
    def term(self, client: Client, batch: Batch) -> Tensor:
        return random.random() * self.distance(client, client.received)


@dataclass(frozen=True)
class MovesTheAnchor(Broken):
    """An exponential moving average written into the received weights."""

    def term(self, client: Client, batch: Batch) -> Tensor:
        with torch.no_grad():
            for name, parameter in client.trainable():
                client.received[name].lerp_(parameter, 0.1)
        return super().term(client, batch)


@dataclass(frozen=True)
class NeedsNegatives(Broken):
    """The log of an empty sum in a batch of one class."""

    def term(self, client: Client, batch: Batch) -> Tensor:
        z = F.normalize(client.model(batch.images).embedding, dim=1)
        other = batch.labels[:, None] != batch.labels[None, :]
        return (z @ z.T).exp().mul(other).sum(dim=1).log().mean()


@dataclass(frozen=True)
class DividesByAbsentClasses(Method):
    """A class that nobody has becomes 0 / 0."""

    mu: float = 0.0

    def upload(self, client: Client) -> Tensors:
        return {"counts": torch.bincount(client.data.images.labels, minlength=4).double()}

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        if not uploads:
            return shared
        total = torch.stack([upload["counts"] for upload in uploads])
        return {"mean": total.sum(dim=0) / total.sum(dim=0)}


@dataclass(frozen=True)
class NeedsPrototypesAtOnce(Method):
    """Does not think of the first round."""

    mu: float = 0.0

    def objective(self, client: Client) -> Objective:
        client.shared["prototypes"]
        return super().objective(client)


@dataclass(frozen=True)
class NoNeutral(Method):
    """Overrides a hook and does not say when it is FedAvg."""

    def gradient(self, client: Client, objective: Objective, batch: Batch) -> Tensor:
        return super().gradient(client, objective, batch) * 1.0


@dataclass(frozen=True)
class FirstOnly(PrototypeMethod):
    """The server listens to one client."""

    mu: float = 0.0

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        return super().merge(shared, uploads[:1], population)


@dataclass(frozen=True)
class Mangler(Method):
    """Changes the client's data."""

    mu: float = 0.0

    def upload(self, client: Client) -> Tensors:
        client.data.images.pixels.zero_()
        return {}


@dataclass(frozen=True)
class Bounded(Method):
    """Sends something that is bounded under [privacy]."""

    mu: float = 0.0

    def objective(self, client: Client) -> Objective:
        cross_entropy = super().objective(client)
        return lambda batch: cross_entropy(batch) * (1 + self.mu)

    def upload(self, client: Client) -> Tensors:
        return {"pixels": client.data.images.pixels.float().mean(dim=0).flatten() / 100}

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        stacked = [upload["pixels"] for upload in uploads]
        return {"pixels": torch.stack(stacked).mean(dim=0)} if uploads else shared

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors | None:
        return {"pixels": torch.empty(64)}

    def upload_sensitivity(self) -> dict[str, float] | None:
        return {"pixels": 2.0}


@dataclass(frozen=True)
class ClaimsTooLittle(Bounded):
    """Uploads of length 1 that may have nothing in common are sqrt(2) apart."""

    def clip_upload(self, upload: Tensors) -> Tensors:
        return {name: tensor / tensor.norm().clamp(min=1) for name, tensor in upload.items()}

    def upload_sensitivity(self) -> dict[str, float] | None:
        return {"pixels": 1.0}


@dataclass(frozen=True)
class DoesNotClip(Bounded):
    def clip_upload(self, upload: Tensors) -> Tensors:
        return upload


@dataclass(frozen=True)
class DividesByZero(Bounded):
    def clip_upload(self, upload: Tensors) -> Tensors:
        return {name: tensor / tensor.norm() for name, tensor in upload.items()}


@dataclass(frozen=True)
class RejectsNoise(Bounded):
    """Thinks that pixels cannot be negative."""

    def check_upload(self, update: ClientUpdate, training: LocalTraining) -> None:
        if (update.upload["pixels"] < 0).any():
            raise ProtocolError("a negative pixel")


@dataclass(frozen=True)
class NotDescribed(Bounded):
    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors | None:
        return None


@dataclass(frozen=True)
class Renamed(Method):
    """Hooks of another library: FedAvg, whatever it says."""

    def aggregate(self, updates: Sequence[ClientUpdate]) -> Tensors:
        return updates[0].weights


@dataclass(frozen=True)
class HalfRenamed(Broken):
    def aggregate(self, updates: Sequence[ClientUpdate]) -> Tensors:
        return updates[0].weights


@dataclass(frozen=True)
class TrainsElsewhere(Broken):
    """The server's model is scored, and clients train from another."""

    def objective(self, client: Client) -> Objective:
        with torch.no_grad():
            for _, live in client.trainable():
                live.mul_(0.9)
        return super().objective(client)


@dataclass(frozen=True)
class ChangesTheDirection(Method):
    neutral: ClassVar = None

    def server_step(self, step: ServerStep) -> ServerStep:
        for tensor in step.weights.values():
            tensor.mul_(2)
        return step


@dataclass(frozen=True)
class DoublesLater(Method):
    """The server's step, from the second round on, whatever the fields say."""

    correction: float = 1.0
    neutral: ClassVar = {"correction": 0.0}

    def server_step(self, step: ServerStep) -> ServerStep:
        factor = 2 if step.round > 1 else 1
        return replace(step, direction={n: factor * one for n, one in step.direction.items()})


@dataclass(frozen=True)
class KeepsAndForgets(Method):
    """A state on the server that nothing is made of."""

    neutral: ClassVar = None

    def server_step(self, step: ServerStep) -> ServerStep:
        return replace(step, kept={f"y/{n}": one.float() for n, one in step.direction.items()})


@dataclass(frozen=True)
class OwnModelDetached(Method):
    neutral: ClassVar = None

    def own_objective(self, client: Client) -> Objective:
        def loss(batch: Batch) -> Tensor:
            output = client.own_model(batch.images)
            return F.cross_entropy(output.logits, batch.labels) * output.logits.detach().mean()

        return loss


@dataclass(frozen=True)
class OwnModelIsTheSharedOne(Method):
    neutral: ClassVar = None

    def own_weights(self, client: Client) -> Tensors:
        return {name: live.detach() for name, live in client.trainable()}


@dataclass(frozen=True)
class SharesWithKnownClientsOnly(Broken):
    def shared_for(self, shared: Tensors, client: int) -> Tensors:
        return {"mine": [torch.zeros(1), torch.ones(1)][client]}


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        (LiveReference, ZERO),
        (Detached, ZERO),
        (Detached, SLOPE),
        (HalfDetached, SLOPE),
        (NotNeutral, NEUTRAL),
        (Unseeded, AGAIN),
        (MovesTheAnchor, UNTOUCHED),
        (NeedsNegatives, "survives a client with one class"),
        (NeedsNegatives, "survives a batch of two without negatives"),
        (DividesByAbsentClasses, "survives a class that nobody has"),
        (NeedsPrototypesAtOnce, "works in the first round"),
        (NoNeutral, NEUTRAL),
        (FirstOnly, "uses every client's upload"),
        (Mangler, UNTOUCHED),
        (ClaimsTooLittle, BOUNDED),
        (DoesNotClip, BOUNDED),
        (DividesByZero, BOUNDED),
        (RejectsNoise, BOUNDED),
        (NotDescribed, BOUNDED),
        (Renamed, ZERO),
        (Renamed, CALLED),
        (HalfRenamed, CALLED),
        (TrainsElsewhere, "trains from the model that is scored"),
        (ChangesTheDirection, UNTOUCHED),
        (DoublesLater, NEUTRAL),
        (KeepsAndForgets, ZERO),
        (OwnModelDetached, SLOPE),
        (OwnModelIsTheSharedOne, ZERO),
        (SharesWithKnownClientsOnly, "continues after an unused reply"),
    ],
)
def test_a_broken_method_is_caught(method: type[Method], broken: str) -> None:
    verdict = judged(method, broken)
    assert not verdict.holds
    assert verdict.detail


@dataclass(frozen=True)
class ExtraForward(Broken):
    """A second forward pass in training mode, so the statistics move twice a step."""

    def term(self, client: Client, batch: Batch) -> Tensor:
        return client.model(batch.images).embedding.square().mean()


def test_statistics_that_move_twice_a_step_are_caught() -> None:
    assert not judged(ExtraForward, STATISTICS).holds
    assert judged(ExtraForward, STATISTICS, "group").holds


def test_a_gradient_of_ones_own_is_not_vouched_for() -> None:
    verdict = judged(METHODS["fedsol"], SLOPE)
    assert verdict.holds
    assert "its own test" in verdict.detail


def test_a_bounded_upload_passes_and_one_without_a_bound_is_told_so() -> None:
    refused = "[privacy] refuses it: define `upload_sensitivity`"
    told = {"scaffold": refused, "dcfl-pw": refused, "fedproc": refused, "fedavg": ""}
    for method, detail in {Bounded: "", **{METHODS[k]: v for k, v in told.items()}}.items():
        verdict = judged(method, BOUNDED)
        assert (verdict.holds, verdict.detail, verdict.offered) == (True, detail, not detail)


@pytest.mark.parametrize(
    "hook", ["objectiv", "gradients", "merge_means", "sever_step", "own_weight"]
)
def test_a_misspelt_hook_is_refused_when_the_class_is_made(hook: str) -> None:
    with pytest.raises(ConfigError, match=rf"Slip\.{hook}: did you mean the hook \w+\?"):
        type("Slip", (Method,), {hook: lambda self: None})


class SendsTwiceTheBytes(Bounded):
    name: ClassVar = "sends-twice-the-bytes"

    def upload(self, client: Client) -> dict[str, Tensor]:
        return {name: tensor.double() for name, tensor in super().upload(client).items()}


def test_what_is_sent_in_float64_is_told() -> None:
    said = {
        method: next(v for v in check_method(method) if v.property.startswith("sends and keeps"))
        for method in (Bounded, SendsTwiceTheBytes)
    }
    assert all(verdict.holds for verdict in said.values())
    assert "float64" in said[SendsTwiceTheBytes].detail
    assert not said[Bounded].detail


def test_what_nobody_claims_is_neither_kept_nor_broken() -> None:
    class Never(Broken):
        neutral: ClassVar = None

    verdict = judged(Never, NEUTRAL)
    assert (verdict.holds, verdict.offered, verdict.detail) == (True, False, "it has none")


def test_a_method_that_exits_does_not_pass() -> None:
    class Leaving(Method):
        def objective(self, client: Client) -> Objective:
            raise SystemExit(0)

    (verdict,) = check_method(Leaving)
    assert verdict.crashed
    assert verdict.detail.startswith("SystemExit: 0 (test_contract.py:")


def test_a_crash_is_said_once_with_the_line_that_is_the_users_own() -> None:
    class Crashing(Method):
        def objective(self, client: Client) -> Objective:
            return lambda batch: torch.zeros(3) @ torch.zeros(4)

    (verdict,) = check_method(Crashing)
    line = Crashing.objective.__code__.co_firstlineno + 1
    assert (verdict.holds, verdict.crashed) == (False, True)
    assert verdict.detail.startswith("RuntimeError: ")
    assert verdict.detail.endswith(f"(test_contract.py:{line})")


def test_a_crash_that_comes_as_a_refusal_is_said_once_too() -> None:
    @dataclass(frozen=True)
    class ForOne(Method):
        neutral: ClassVar = None

        def shared_for(self, shared: Tensors, client: int) -> Tensors:
            raise KeyError("centre")

    verdicts = check_method(ForOne)
    broken = [verdict for verdict in verdicts if not verdict.holds]
    assert broken == verdicts[-1:]
    assert broken[0].crashed
    assert "shared_for raised KeyError: 'centre'" in broken[0].detail


def test_a_late_crash_leaves_the_verdicts_before_it() -> None:
    class Late(Method):
        def objective(self, client: Client) -> Objective:
            if client.data.images.labels.unique().numel() == 1:
                raise ZeroDivisionError("one class")
            plain = super().objective(client)
            return lambda batch: 2 * plain(batch)

    verdicts = check_method(Late)
    assert [verdict.crashed for verdict in verdicts] == [False] * (len(verdicts) - 1) + [True]
    assert verdicts[-1].property == "survives a client with one class"


def test_the_sound_version_passes() -> None:
    assert [verdict for verdict in check_method(Broken) if not verdict.holds] == []


def test_names_come_from_the_class_unless_set() -> None:
    class Named(Method):
        name: ClassVar = "my-name"

    assert (Broken.name, Named.name, METHODS["moon"].name) == ("broken", "my-name", "moon")
