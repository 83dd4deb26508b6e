"""SCAFFOLD worked out in numpy: softmax regression, five clients, two of them in each round."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dcfl.client import Batch, Client
from dcfl.data import ClientData
from dcfl.data.augment import Preparation
from dcfl.local_training import LocalTraining, train_client
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.scaffold import Scaffold
from dcfl.models import FeatureModel
from dcfl.models.output import Output
from dcfl.server import Server, ServerState
from dcfl.tensors import snapshot
from dcfl.testing.toys import (
    CLASSES,
    TRAINING,
    toy_client,
    toy_images,
    toy_model,
    two_rounds,
    visit,
)
from tests.methods.cases import EXACT

POPULATION = 5
COHORTS = [(0, 1), (0, 2), (1, 2)]  # some come again, 2 joins when c is no longer zero
LABELS = {0: [0, 0, 1, 2, 0, 1, 3], 1: [3, 3, 2, 1, 3], 2: [2, 2, 0, 1, 2, 2, 0, 3, 1]}
PLAIN = LocalTraining(2, 3, 0.1, lr_decay=0.5, momentum=0.0, weight_decay=0.0, max_grad_norm=0.0)
NAMES = ("classifier.weight", "classifier.bias")
Arrays = dict[str, np.ndarray]


class Regression(FeatureModel):
    """Softmax regression in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.classifier = nn.Linear(64, CLASSES).double()

    def forward(self, images: Tensor) -> Output:
        x = images.double().flatten(1)
        return Output(self.classifier(x), x, (x,))


def data(client: int) -> ClientData:
    images = toy_images(LABELS[client], seed=client)
    return ClientData(images, CLASSES, Preparation((0.3,), (0.3,)))


@dataclass
class ByHand:
    """The algorithm in numpy."""

    training: LocalTraining
    w: Arrays = field(default_factory=dict)
    c: Arrays = field(default_factory=dict)
    own: dict[int, Arrays] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.w = {name: tensor.numpy() for name, tensor in snapshot(Regression()).items()}
        self.c = {name: np.zeros_like(array) for name, array in self.w.items()}

    def gradient(self, w: Arrays, batch: Batch) -> Arrays:
        x, y = batch.images.double().flatten(1).numpy(), batch.labels.numpy()
        powers = np.exp(x @ w["classifier.weight"].T + w["classifier.bias"])
        d = (powers / powers.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
        return {"classifier.weight": d.T @ x, "classifier.bias": d.sum(axis=0)}

    def visit(self, client: int, round: int) -> tuple[Arrays, Arrays]:
        """The trained weights and the new variate c_i."""
        t = self.training
        c_i = self.own.get(client, {name: np.zeros_like(self.w[name]) for name in NAMES})
        w = {name: array.copy() for name, array in self.w.items()}
        velocity = {name: np.zeros_like(array) for name, array in w.items()}
        reach = carried = 0.0  # how far a gradient of 1 would have got, and its velocity
        batches = list(
            data(client).training_batches(
                t.epochs, t.batch_size, 0, round, client, second_view=False
            )
        )
        for step, batch in enumerate(batches):
            lr = t.lr * t.lr_decay ** (round - 1)
            if t.lr_decay_per == "round+epoch" and step >= len(batches) // 2:
                lr *= t.lr_decay  # the second of two epochs
            carried = t.momentum * carried + 1
            reach += lr * carried
            g = self.gradient(w, batch)
            for name in NAMES:
                corrected = g[name] - c_i[name] + self.c[name] + t.weight_decay * w[name]
                velocity[name] = t.momentum * velocity[name] + corrected
                w[name] = w[name] - lr * velocity[name]
        new = {n: c_i[n] - self.c[n] + (self.w[n] - w[n]) / reach for n in NAMES}
        return w, new

    def round(self, round: int, cohort: tuple[int, ...]) -> None:
        results = [self.visit(client, round) for client in cohort]
        changes = [
            {n: new[n] - self.own.get(client, {}).get(n, 0.0) for n in NAMES}
            for client, (_, new) in zip(cohort, results, strict=True)
        ]
        for name in NAMES:
            delta = sum(w[name] - self.w[name] for w, _ in results) / len(cohort)
            change = sum(each[name] for each in changes) / len(cohort)
            self.w[name] = self.w[name] + 1.0 * delta
            self.c[name] = self.c[name] + len(cohort) / POPULATION * change
        self.own.update({client: new for client, (_, new) in zip(cohort, results, strict=True)})


def same(tensors: dict[str, Tensor], arrays: Arrays) -> None:
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_allclose(tensors[name].numpy(), array, **EXACT)


@pytest.mark.parametrize(
    "training",
    [
        PLAIN,
        replace(PLAIN, momentum=0.9),
        replace(PLAIN, momentum=0.5, weight_decay=0.01),
        replace(PLAIN, lr_decay_per="round+epoch"),
        replace(PLAIN, lr_decay_per="round+epoch", momentum=0.9),
    ],
    ids=["plain", "momentum", "momentum and decay", "rate per epoch", "rate and momentum"],
)
def test_three_rounds_with_partial_participation_are_as_in_numpy(training: LocalTraining) -> None:
    hand = ByHand(training)
    server = Server(Scaffold(), POPULATION, frozenset(NAMES), training)
    state = ServerState(0, snapshot(Regression()), {}, {})
    memories: dict[int, dict[str, Tensor]] = {}
    for number, cohort in enumerate(COHORTS, start=1):
        broadcast = server.broadcast(state)
        replies = []
        for client in cohort:
            update, memory = train_client(
                Scaffold(),
                Regression(),
                data(client),
                broadcast,
                memories.get(client, {}),
                training,
                client,
                seed=0,
            )
            replies.append(update)
            memories[client] = dict(memory)
        state, _ = server.aggregate(state, broadcast, replies)
        hand.round(number, cohort)
        same(dict(state.weights), hand.w)
        same(dict(state.shared), hand.c)
        for client, memory in memories.items():
            same(memory, hand.own[client])


def corrected_client() -> Client:
    network = toy_model().double().train()
    torch.manual_seed(4)
    c, c_i = (
        {name: torch.randn_like(p) for name, p in network.named_parameters()} for _ in range(2)
    )
    return Client(0, 2, network, snapshot(network), c, c_i, toy_client(LABELS[0]), TRAINING)


def toy_batch() -> Batch:
    torch.manual_seed(1)
    labels = torch.tensor(LABELS[0])
    return Batch(torch.randn(len(labels), 1, 8, 8, dtype=torch.float64), labels)


def gradients(method: Scaffold | FedAvg, who: Client) -> dict[str, Tensor]:
    who.model.zero_grad()
    method.gradient(who, method.objective(who), toy_batch())
    return {n: live.grad.clone() for n, live in who.trainable() if live.grad is not None}


def test_a_steps_gradient_is_g_minus_the_own_variate_plus_everybodys() -> None:
    who = corrected_client()
    plain = gradients(FedAvg(), who)
    ours = gradients(Scaffold(), who)
    expected = {name: g - who.memory[name] + who.shared[name] for name, g in plain.items()}
    torch.testing.assert_close(ours, expected, **EXACT)


def test_a_client_without_a_memory_has_the_variate_zero() -> None:
    who = corrected_client()
    who.memory = {}
    plain = gradients(FedAvg(), who)
    expected = {name: g + who.shared[name] for name, g in plain.items()}
    torch.testing.assert_close(gradients(Scaffold(), who), expected, **EXACT)


def test_the_first_round_has_zero_variates() -> None:
    who = corrected_client()
    who.memory, who.shared = {}, {}
    torch.testing.assert_close(gradients(Scaffold(), who), gradients(FedAvg(), who), rtol=0, atol=0)


def test_variates_exist_for_parameters_only() -> None:
    rounds = two_rounds(Scaffold(), "batch", LABELS[0], LABELS[1])
    parameters = {name for name, _ in toy_model().named_parameters()}
    for each in (*rounds.first, *rounds.second):
        assert set(each.memory) == set(each.update.upload) == parameters
    assert set(rounds.shared) == parameters


def test_the_server_divides_by_the_population() -> None:
    """c + (|S| / N) mean of the changes."""
    uploads = [{"w": torch.tensor([1.0, 4.0])}, {"w": torch.tensor([3.0, 0.0])}]
    first = Scaffold().merge({}, uploads, 10)
    assert first["w"].tolist() == pytest.approx([0.4, 0.4])
    second = Scaffold().merge({"w": torch.tensor([1.0, 2.0])}, uploads, 10)
    assert second["w"].tolist() == pytest.approx([1.4, 2.4])


def test_a_client_that_took_no_step_keeps_its_numbers_finite() -> None:
    _, memory = visit(Scaffold(), toy_client([1]))
    assert all(tensor.isfinite().all() for tensor in memory.values())
