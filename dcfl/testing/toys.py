"""A small federation of noisy squares, to try methods on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from dcfl.data import Augmentation, ClientData, Images
from dcfl.data.augment import Preparation
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import Method
from dcfl.methods.method import addressed
from dcfl.models import CNN, FeatureModel
from dcfl.models.networks import Norm
from dcfl.server import Server, ServerState
from dcfl.tensors import snapshot

CLASSES = 4
TRAINING = LocalTraining(epochs=2, batch_size=8, lr=0.05)
MIXED = [0, 0, 0, 1, 1, 2, 2, 3, 0, 1, 2, 3] * 2
TWO_CLIENTS = (MIXED, MIXED[::-1][:17])  # their labels
FOUR_CLIENTS = (*TWO_CLIENTS, [0, 1, 1, 2] * 3, [3, 0, 2, 2] * 4)
COHORTS = ((0, 1), (1, 2), (0, 3))  # of the four: who is away, who comes back, who is new


class Broken(Exception):
    """A property does not hold; the text says how that showed."""


class NotOffered(Exception):
    """The method does not claim it; the text says what follows."""


def toy_images(labels: Sequence[int], seed: int = 0) -> Images:
    """8x8 noise with a bright quarter that tells the class."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 120, (len(labels), 8, 8, 1), generator=generator, dtype=torch.uint8)
    for pixel, label in zip(pixels, labels, strict=True):
        row, column = 4 * (label % 2), 4 * (label // 2 % 2)
        pixel[row : row + 4, column : column + 4] += 100
    return Images(pixels, torch.tensor(labels, dtype=torch.int64))


def toy_client(labels: Sequence[int], augmentation: Augmentation | None = None) -> ClientData:
    preparation = Preparation((0.3,), (0.3,), augmentation or Augmentation(crop=1))
    return ClientData(toy_images(labels), CLASSES, preparation)


def toy_model(norm: Norm = "batch", seed: int = 0) -> FeatureModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CNN(channels=1, size=8, classes=CLASSES, norm=norm)


class Visit(NamedTuple):
    update: ClientUpdate
    memory: Tensors


class Rounds(NamedTuple):
    """Two rounds of all clients. In the second, prototypes and memories are in play."""

    first: list[Visit]
    second: list[Visit]
    state: ServerState  # of the server between the two

    @property
    def received(self) -> Broadcast:
        """In the second round: the server's weights, and what the method shares."""
        return Broadcast(2, self.weights, self.shared)

    @property
    def weights(self) -> Tensors:
        return self.state.weights

    @property
    def shared(self) -> Tensors:
        return self.state.shared


def visit(
    method: Method,
    data: ClientData,
    *,
    received: Broadcast | None = None,
    memory: Tensors | None = None,
    norm: Norm = "batch",
    training: LocalTraining | None = None,
    client: int = 0,
    model: FeatureModel | None = None,
) -> Visit:
    """One client's round: the first, from the same initial weights, unless told otherwise."""
    model = model or toy_model(norm)
    received = received or Broadcast(1, snapshot(model), {})
    reply = train_client(
        method, model, data, received, memory or {}, training or TRAINING, client, seed=0
    )
    return Visit(*reply)


def two_rounds(method: Method, norm: Norm, *labels: Sequence[int]) -> Rounds:
    """A client per sequence of labels, or two; all of them take part in both rounds. Equal rounds
    are trained once: their tensors must not be changed."""
    held = tuple(tuple(of_one) for of_one in labels or TWO_CLIENTS)
    try:
        hash(method)
    except TypeError:  # a field of a user's method is a list
        return fresh_rounds(method, norm, held, TRAINING)
    return _trained_once(method, norm, held, TRAINING)


def fresh_rounds(
    method: Method, norm: Norm, labels: Sequence[Sequence[int]], training: LocalTraining
) -> Rounds:
    data = [toy_client(held) for held in labels]
    first = [
        visit(method, client_data, norm=norm, training=training, client=client)
        for client, client_data in enumerate(data)
    ]
    state = averaged(method, norm, [reply.update for reply in first])
    received = Broadcast(2, state.weights, state.shared)
    second = [
        visit(
            method,
            data[client],
            received=addressed(received, method, client),
            memory=memory,
            norm=norm,
            training=training,
            client=client,
        )
        for client, (_, memory) in enumerate(first)
    ]
    return Rounds(first, second, state)


_trained_once = lru_cache(maxsize=32)(fresh_rounds)


def partial_rounds(method: Method, norm: Norm) -> list[ServerState]:
    """The server after each of three rounds, in which two of four clients take part."""
    try:
        hash(method)
    except TypeError:
        return _fresh_partial_rounds(method, norm)
    return _partial_once(method, norm)


def _fresh_partial_rounds(method: Method, norm: Norm) -> list[ServerState]:
    data = [toy_client(held) for held in FOUR_CLIENTS]
    model = toy_model(norm)
    server = toy_server(method, model, len(data))
    states = [ServerState(0, snapshot(model), {}, {})]
    memories: dict[int, Tensors] = {}
    for cohort in COHORTS:
        sent, updates = server.broadcast(states[-1]), []
        for client in cohort:
            update, memories[client] = visit(
                method,
                data[client],
                received=addressed(sent, method, client),
                memory=memories.get(client),
                norm=norm,
                client=client,
            )
            updates.append(update)
        states.append(server.aggregate(states[-1], sent, updates)[0])
    return states[1:]


_partial_once = lru_cache(maxsize=32)(_fresh_partial_rounds)


def toy_server(
    method: Method, model: FeatureModel, clients: int, unsent: frozenset[str] = frozenset()
) -> Server:
    names = frozenset(name for name, _ in model.named_parameters())
    return Server(method, clients, names, TRAINING, unsent=unsent)


def averaged(method: Method, norm: Norm, updates: list[ClientUpdate]) -> ServerState:
    model = toy_model(norm)
    server = toy_server(method, model, len(updates))
    state = ServerState(0, snapshot(model), {}, {})
    return server.aggregate(state, server.broadcast(state), updates)[0]
