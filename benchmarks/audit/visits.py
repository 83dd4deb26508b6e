"""Two visits of one client, by somebody else's code and by ours, on the problem of the oracles.

Both make a first visit from the same weights A, each by itself. Then both receive the same weights
B. Their gradient in the second step of this second visit is read off their weights and held against
ours at the same point: there the client has moved away from B, and remembers its first visit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.oracles.problem import LR, TRAINING, Tiny, client_data, tensors_of
from dcfl.client import Batch, Client
from dcfl.messages import Tensors
from dcfl.methods import Method, Objective
from dcfl.methods.personal.ditto import Ditto
from dcfl.tensors import snapshot

CLIENT, STEPS = 0, 2
IMAGES, TARGETS = tensors_of(CLIENT)


class Network(nn.Module):
    """`Tiny` under the names by which the frameworks call the parts of a network."""

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        tiny = Tiny()
        self.body, self.classifier = tiny.body, tiny.classifier
        self.load_state_dict(weights)

    def base(self, images: Tensor) -> Tensor:
        return torch.tanh(self.body(images.flatten(1)))

    def head(self, features: Tensor) -> Tensor:
        return self.classifier(features)

    def encoder(self, images: Tensor) -> Tensor:
        return self.base(images)

    def get_last_features(self, images: Tensor, detach: bool = True) -> Tensor:
        return self.base(images).detach() if detach else self.base(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.base(images))


class Triple(Network):
    """As MOON's code expects a network: features, what is contrasted, logits."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.base(images)
        return features, features, self.head(features)


# A visit: (its state, the weights received, the server's vector, steps) -> (weights, its state).
# The state is whatever its code keeps of a client: None before the first visit.
Visit = Callable[[Any, Tensors, Tensors, int], tuple[Tensors, Any]]


@dataclass(frozen=True)
class Theirs:
    """One method in somebody's code."""

    framework: str
    method: str
    files: tuple[str, ...]
    visit: Visit
    ours: Method
    momentum: float = 0.0  # of its SGD, where the code fixes it; taken out of what is compared
    decay: float = 0.0  # its weight decay, likewise


@dataclass(frozen=True)
class OwnOfDitto(Ditto):
    """Its clients' own model in the place of the shared one, which is FedAvg's."""

    def start(self, client: Client) -> Tensors:
        return client.memory

    def objective(self, client: Client) -> Objective:
        client.own_model = client.model
        return self.own_objective(client)

    def remember(self, client: Client) -> Tensors:
        return snapshot(client.model)


@dataclass(frozen=True)
class Finding:
    first: float  # relative error of the gradient in the second step of a client's first visit
    second: float  # and of its second visit
    moved: float  # relative error of how far the second visit moved the weights
    their_loss: float  # the loss in that step, as their code computes it
    our_loss: float


def compare(theirs: Theirs) -> Finding:
    start, later = snapshot(Tiny(0)), snapshot(Tiny(1))
    server = {name: 0.05 * tensor for name, tensor in snapshot(Tiny(2)).items()}
    none = {name: torch.zeros_like(tensor) for name, tensor in server.items()}
    first, _, _ = _second_step(theirs, lambda: None, start, none, {})
    sgd = (theirs.momentum, theirs.decay)
    memory = _our_visit(theirs.ours, start, none, {}, *sgd)[1]

    def remembered() -> Any:
        return theirs.visit(None, start, none, STEPS)[1]

    second, values, after = _second_step(theirs, remembered, later, server, memory)
    ours = _our_visit(theirs.ours, later, server, memory, *sgd)[0]
    moved = error(_minus(after, later), _minus(ours, later))
    return Finding(first, second, moved, *values)


def _second_step(
    theirs: Theirs, remembered: Callable[[], Any], received: Tensors, server: Tensors, memory: Any
) -> tuple[float, tuple[float, float], Tensors]:
    """The error of the second step's gradient, both losses there, and their weights afterwards."""
    one, _ = theirs.visit(remembered(), received, server, 1)
    state = remembered()
    with _losses() as values:
        two, _ = theirs.visit(state, received, server, 2)
    steps = [_minus(received, one, 1 / LR), _minus(one, two, 1 / LR)]
    gradient = {
        name: step - theirs.momentum * steps[0][name] - theirs.decay * one[name]
        for name, step in steps[1].items()
    }
    client = our_client(one, received, server, memory)
    loss = theirs.ours.gradient(client, theirs.ours.objective(client), Batch(IMAGES, TARGETS))
    ours = {name: live.grad for name, live in client.trainable() if live.grad is not None}
    last = values[-1] if values else float("nan")
    return error(gradient, ours), (last, float(loss.detach())), two


def our_client(weights: Tensors, received: Tensors, server: Tensors, memory: Tensors) -> Client:
    model = Tiny()
    model.load_state_dict(weights)
    shared = server if any(tensor.any() for tensor in server.values()) else {}
    return Client(0, 2, model, received, shared, memory, client_data(CLIENT), TRAINING)


def _our_visit(
    method: Method, received: Tensors, server: Tensors, memory: Tensors,
    momentum: float = 0.0, decay: float = 0.0,
) -> tuple[Tensors, Tensors]:  # fmt: skip
    """Our weights and memory after a visit."""
    client = our_client(received, received, server, memory)
    client.model.load_state_dict(method.start(client), strict=False)
    objective = method.objective(client)
    sgd = torch.optim.SGD(client.model.parameters(), LR, momentum, weight_decay=decay)
    for _ in range(STEPS):
        sgd.zero_grad()
        method.gradient(client, objective, Batch(IMAGES, TARGETS))
        sgd.step()
    client = replace(client, num_steps=STEPS)
    return snapshot(client.model), method.remember(client)


@contextmanager
def _losses() -> Iterator[list[float]]:
    """What `backward` is called on within the block."""
    values: list[float] = []
    backward = torch.Tensor.backward

    def recording(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        values.append(float(loss.detach()))
        backward(loss, *args, **kwargs)

    torch.Tensor.backward = recording  # type: ignore[method-assign]
    try:
        yield values
    finally:
        torch.Tensor.backward = backward  # type: ignore[method-assign]


def _minus(a: Tensors, b: Tensors, factor: float = 1.0) -> dict[str, Tensor]:
    return {name: factor * (a[name].detach() - b[name].detach()) for name in a}


def error(theirs: Tensors, ours: Tensors) -> float:
    difference = sum(float((theirs[name] - ours[name]).square().sum()) for name in ours)
    return float((difference / sum(float(t.square().sum()) for t in ours.values())) ** 0.5)
