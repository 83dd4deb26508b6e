"""FedSOL: a round worked out in numpy, and everything that it must undo."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dcfl.client import Batch, Client
from dcfl.data import ClientData
from dcfl.data.augment import Preparation
from dcfl.local_training import LocalTraining, train_client
from dcfl.messages import Broadcast
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.fedsol import FedSOL
from dcfl.models import FeatureModel
from dcfl.models.networks import Norm, ResNet18
from dcfl.models.output import Output
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_images, toy_model, visit

LABELS = [0, 0, 1, 2, 0, 1, 3, 2, 1, 3, 3, 0]
SGD = LocalTraining(1, 4, lr=0.2, momentum=0.9, weight_decay=0.01, max_grad_norm=0.0)
Arrays = dict[str, np.ndarray]


class Tiny(FeatureModel):
    """64 pixels, five tanh units, four classes; in float64 whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.classifier = nn.Linear(64, 5), nn.Linear(5, CLASSES)
        self.double()

    def forward(self, images: Tensor) -> Output:
        embedding = torch.tanh(self.body(images.double().flatten(1)))
        return Output(self.classifier(embedding), embedding, (embedding,))


DATA = ClientData(toy_images(LABELS), CLASSES, Preparation((0.3,), (0.3,)))


# The same in numpy, with the derivatives by hand


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def logits_of(w: Arrays, x: np.ndarray) -> np.ndarray:
    hidden = np.tanh(x @ w["body.weight"].T + w["body.bias"])
    return hidden @ w["classifier.weight"].T + w["classifier.bias"]


def gradient_of(w: Arrays, x: np.ndarray, d_logits: np.ndarray) -> Arrays:
    """From the derivative with respect to the logits to that of every weight."""
    hidden = np.tanh(x @ w["body.weight"].T + w["body.bias"])
    d_before = (d_logits @ w["classifier.weight"]) * (1 - hidden**2)
    return {
        "body.weight": d_before.T @ x,
        "body.bias": d_before.sum(axis=0),
        "classifier.weight": d_logits.T @ hidden,
        "classifier.bias": d_logits.sum(axis=0),
    }


def entropy_gradient(w: Arrays, x: np.ndarray, y: np.ndarray) -> Arrays:
    return gradient_of(w, x, (softmax(logits_of(w, x)) - np.eye(CLASSES)[y]) / len(y))


def distillation_gradient(w: Arrays, received: Arrays, x: np.ndarray) -> Arrays:
    """Of KL(q || p), the mean over the batch, at temperature 3 and without a factor 9."""
    q, p = softmax(logits_of(received, x) / 3), softmax(logits_of(w, x) / 3)
    return gradient_of(w, x, (p - q) / 3 / len(x))


def unit_along_the_first_axis(a: np.ndarray) -> np.ndarray:
    columns = a.reshape(len(a), -1).T  # the entries that differ in the output channel only
    lengths = [max(np.sqrt(sum(v * v for v in column)), 1e-12) for column in columns]
    return (columns / np.array(lengths)[:, None]).T.reshape(a.shape)


def offset(w: Arrays, received: Arrays, x: np.ndarray, m: FedSOL) -> Arrays:
    proximal = distillation_gradient(w, received, x)
    if m.perturb == "head":
        proximal = {k: g * k.startswith("classifier") for k, g in proximal.items()}
    length = np.sqrt(sum((g**2).sum() for g in proximal.values()))
    if length < 1e-7:
        return {name: 0 * g for name, g in proximal.items()}
    result = {name: m.rho * g / (length + 1e-12) for name, g in proximal.items()}
    if m.variant == "adaptive":
        for name in result:
            result[name] *= unit_along_the_first_axis(np.abs(w[name] - received[name]))
    return result


def round_by_hand(m: FedSOL, training: LocalTraining) -> tuple[Arrays, list[float]]:
    """The trained weights, and how long the offset was in each step."""
    w = {name: tensor.numpy().copy() for name, tensor in snapshot(Tiny()).items()}
    received = {name: array.copy() for name, array in w.items()}
    velocity = {name: np.zeros_like(array) for name, array in w.items()}
    lengths = []
    for batch in DATA.training_batches(1, 4, seed=0, round=1, client=0, second_view=False):
        x, y = batch.images.double().flatten(1).numpy(), batch.labels.numpy()
        e = offset(w, received, x, m)
        lengths.append(float(np.sqrt(sum((each**2).sum() for each in e.values()))))
        g = entropy_gradient({name: w[name] + e[name] for name in w}, x, y)
        if training.max_grad_norm:
            norm = np.sqrt(sum((each**2).sum() for each in g.values()))
            factor = min(1.0, training.max_grad_norm / (norm + 1e-6))
            g = {name: factor * each for name, each in g.items()}
        for name in w:
            decayed = g[name] + training.weight_decay * w[name]
            velocity[name] = training.momentum * velocity[name] + decayed
            w[name] = w[name] - training.lr * velocity[name]
    return w, lengths


@pytest.mark.parametrize("variant", ["fixed", "adaptive"])
@pytest.mark.parametrize("perturb", ["all", "head"])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_a_round_of_three_steps_is_as_in_numpy(
    variant: str, perturb: str, max_grad_norm: float
) -> None:
    method = FedSOL(rho=0.8, variant=variant, perturb=perturb)  # type: ignore[arg-type]
    training = replace(SGD, max_grad_norm=max_grad_norm)
    broadcast = Broadcast(1, snapshot(Tiny()), {})
    update, _ = train_client(method, Tiny(), DATA, broadcast, {}, training, 0, seed=0)
    expected, lengths = round_by_hand(method, training)
    assert update.num_steps == len(lengths) == 3
    assert lengths[0] == 0
    assert min(lengths[1:]) > 0.05
    if variant == "fixed":
        assert lengths[1:] == pytest.approx([0.8, 0.8])
    for name, array in expected.items():
        np.testing.assert_allclose(update.weights[name].numpy(), array, rtol=1e-9, atol=1e-9)


def moved_client(network: FeatureModel) -> Client:
    """Some steps into a round."""
    received = snapshot(network)
    torch.manual_seed(3)
    with torch.no_grad():
        for live in network.parameters():
            live.add_(0.05 * torch.randn_like(live))
    return Client(0, 2, network.train(), received, {}, {}, toy_client(LABELS), TRAINING)


def toy_batch() -> Batch:
    torch.manual_seed(1)
    return Batch(torch.randn(len(LABELS), 1, 8, 8), torch.tensor(LABELS))


def gradient(method: FedSOL | FedAvg, who: Client, batch: Batch) -> list[Tensor]:
    who.model.zero_grad()
    method.gradient(who, method.objective(who), batch)
    return [live.grad.clone() for live in who.model.parameters() if live.grad is not None]


def test_lambda_is_of_unit_length_along_the_output_channels_of_a_convolution() -> None:
    """One step's offset on a network with 4-D weights, in torch operations of its own."""
    who, batch = moved_client(toy_model("group").double()), toy_batch()
    batch = Batch(batch.images.double(), batch.labels)
    parameters = dict(who.model.named_parameters())
    teacher = toy_model("group").double()
    teacher.load_state_dict(who.received)
    q = F.softmax(teacher(batch.images).logits.detach() / 3, dim=1)
    log_p = F.log_softmax(who.model(batch.images).logits / 3, dim=1)
    kl = sum((qi * (qi.log() - pi)).sum() for qi, pi in zip(q, log_p, strict=True)) / len(q)
    proximal = torch.autograd.grad(kl, list(parameters.values()))
    length = sum(g.square().sum() for g in proximal).sqrt()
    kept = snapshot(who.model)
    with torch.no_grad():
        for (name, live), g in zip(parameters.items(), proximal, strict=True):
            away = (live - who.received[name]).abs()
            lengths = sum(channel.square() for channel in away).sqrt()
            live += 0.5 * (away / lengths) * g / length
    loss = F.cross_entropy(who.model(batch.images).logits, batch.labels)
    expected = torch.autograd.grad(loss, list(parameters.values()))
    who.model.load_state_dict(kept)
    ours = gradient(FedSOL(rho=0.5), who, batch)
    torch.testing.assert_close(ours, list(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variant", ["fixed", "adaptive"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_first_step_of_a_round_is_not_perturbed(variant: str, norm: Norm) -> None:
    """w = w_received: the distillation's gradient is round-off, not a direction of length rho."""
    who = Client(
        0,
        1,
        toy_model(norm).train(),
        snapshot(toy_model(norm)),
        {},
        {},
        toy_client(LABELS),
        TRAINING,
    )
    ours = gradient(FedSOL(rho=5.0, variant=variant), who, toy_batch())  # type: ignore[arg-type]
    plain = gradient(FedAvg(), who, toy_batch())
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("variant", ["fixed", "adaptive"])
def test_the_first_step_of_a_deep_network_is_not_perturbed_either(variant: str) -> None:
    """Round-off grows with the depth: in a ResNet-18 it is longer than in the toys."""
    torch.manual_seed(0)
    network = ResNet18(channels=3, size=16, classes=10).train()
    batch = Batch(torch.randn(8, 3, 16, 16), torch.arange(8))
    who = Client(0, 1, network, snapshot(network), {}, {}, toy_client(LABELS), TRAINING)
    offsets: list[float] = []

    def watching(batch: Batch) -> Tensor:
        moved = [(live - who.received[name]).abs().max() for name, live in who.trainable()]
        offsets.append(max(moved).item())
        return F.cross_entropy(network(batch.images).logits, batch.labels)

    FedSOL(variant=variant).gradient(who, watching, batch)  # type: ignore[arg-type]
    assert offsets == [0.0]


def test_later_steps_are_perturbed() -> None:
    who = moved_client(toy_model())
    ours, plain = gradient(FedSOL(), who, toy_batch()), gradient(FedAvg(), who, toy_batch())
    assert not any(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


def test_the_proximal_loss_never_enters_the_update_itself() -> None:
    """What is left in .grad is the gradient at w + e alone: with a tiny e, FedAvg's."""
    who, batch = moved_client(toy_model()), toy_batch()
    ours, plain = gradient(FedSOL(rho=1e-12), who, batch), gradient(FedAvg(), who, batch)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)


def test_running_statistics_move_once_a_step_at_the_unperturbed_weights() -> None:
    who, batch = moved_client(toy_model()), toy_batch()
    before = snapshot(who.model)
    maps = F.conv2d(batch.images, before["convolutions.0.weight"], padding=1)
    expected = 0.9 * before["norms.0.running_mean"] + 0.1 * maps.mean(dim=(0, 2, 3))
    gradient(FedSOL(), who, batch)
    after = snapshot(who.model)
    torch.testing.assert_close(after["norms.0.running_mean"], expected, rtol=1e-5, atol=1e-6)
    assert [int(after[f"norms.{k}.num_batches_tracked"]) for k in range(3)] == [1, 1, 1]
    who.model.load_state_dict(before)
    gradient(FedAvg(), who, batch)
    assert sha256(dict(who.model.named_buffers())) == sha256(
        {name: after[name] for name, _ in who.model.named_buffers()}
    )


def test_the_teacher_keeps_its_weights_and_statistics() -> None:
    who = moved_client(toy_model())
    received = sha256(who.received)
    for _ in range(2):
        gradient(FedSOL(), who, toy_batch())
    assert sha256(who.global_model.state_dict()) == sha256(who.received) == received
    assert all(p.grad is None and not p.requires_grad for p in who.global_model.parameters())


def tracking(network: nn.Module) -> list[bool]:
    return [m.track_running_stats for m in network.modules() if isinstance(m, nn.BatchNorm2d)]


def test_a_step_leaves_every_bit_of_the_weights_to_the_optimiser() -> None:
    who = moved_client(toy_model())
    before = sha256({name: live.detach().clone() for name, live in who.trainable()})
    gradient(FedSOL(rho=3.0), who, toy_batch())
    assert sha256(dict(who.trainable())) == before
    assert tracking(who.model) == [True] * 3
    assert who.model.training


def test_an_objective_that_raises_leaves_nothing_behind() -> None:
    who = moved_client(toy_model())
    before = sha256({name: live.detach().clone() for name, live in who.trainable()})
    during: list[tuple[str, list[bool]]] = []

    def broken(batch: Batch) -> Tensor:
        during.append((sha256(dict(who.trainable())), tracking(who.model)))
        raise ArithmeticError("no loss today")

    with pytest.raises(ArithmeticError, match="no loss today"):
        FedSOL().gradient(who, broken, toy_batch())
    assert during[0][0] != before  # it was called at the perturbed weights
    assert during[0][1] == [False] * 3
    assert sha256(dict(who.trainable())) == before
    assert tracking(who.model) == [True] * 3
    assert tracking(who.global_model) == [True] * 3


def test_layers_without_running_statistics_stay_without() -> None:
    who = moved_client(toy_model("batch-nostats"))
    gradient(FedSOL(), who, toy_batch())
    assert tracking(who.model) == [False] * 3


def test_head_perturbs_the_classifier_alone() -> None:
    who = moved_client(toy_model())
    kept = snapshot(who.model)
    changed: set[str] = set()

    def watching(batch: Batch) -> Tensor:
        changed.update(n for n, live in who.trainable() if not torch.equal(live, kept[n]))
        return F.cross_entropy(who.model(batch.images).logits, batch.labels)

    FedSOL(perturb="head").gradient(who, watching, toy_batch())
    assert changed == {"classifier.weight", "classifier.bias"}
    assert all(live.grad is not None for _, live in who.trainable())


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("variant", ["fixed", "adaptive"])
def test_without_a_perturbation_it_has_the_bits_of_fedavg(norm: Norm, variant: str) -> None:
    play = partial(visit, data=toy_client(LABELS), norm=norm)
    ours = play(FedSOL(rho=0.0, variant=variant)).update.weights  # type: ignore[arg-type]
    assert sha256(ours) == sha256(play(FedAvg()).update.weights)
    assert sha256(play(FedSOL()).update.weights) != sha256(ours)


def test_the_defaults_are_the_recommended_ones() -> None:
    assert FedSOL() == FedSOL(rho=1.0, variant="adaptive", perturb="all", temperature=3.0)
