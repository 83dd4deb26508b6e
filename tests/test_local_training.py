import subprocess
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dcfl.client import Client, evaluating
from dcfl.data import Augmentation
from dcfl.data.client_data import Batch
from dcfl.errors import ConfigError, Diverged
from dcfl.local_training import _SGD, LocalTraining, _own_randomness, norms_and_biases, train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.models import NETWORKS, FeatureModel, ModelSettings, build_model
from dcfl.models.networks import Norm
from dcfl.models.output import Output
from dcfl.models.parts import personalise
from dcfl.system.processes import python
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import CLASSES, TRAINING, toy_client, toy_model, visit

FEDAVG = METHODS["fedavg"]()


@pytest.mark.parametrize("lr_decay_per", ["round", "round+epoch"])
@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
def test_four_steps_of_sgd_by_hand(
    lr_decay_per: Literal["round", "round+epoch"], decay_norm_and_bias: bool
) -> None:
    """Momentum, weight decay, clipping and the decayed rate, written out for every parameter."""
    training = LocalTraining(
        epochs=2,
        batch_size=4,
        lr=0.1,
        lr_decay=0.5,
        lr_decay_per=lr_decay_per,
        momentum=0.9,
        weight_decay=0.01,
        decay_norm_and_bias=decay_norm_and_bias,
        max_grad_norm=0.5,
    )
    data = toy_client([0, 1, 2, 3] * 2, Augmentation())
    update, _ = visit(
        FEDAVG, data, training=training, received=Broadcast(3, snapshot(toy_model()), {})
    )

    model = toy_model().train()
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    rates = [0.025] * 4 if lr_decay_per == "round" else [0.025, 0.025, 0.0125, 0.0125]  # round 3
    batches = data.training_batches(2, 4, 0, 3, 0, second_view=False)
    for lr, batch in zip(rates, batches, strict=True):
        model.zero_grad()
        F.cross_entropy(model(batch.images).logits, batch.labels).backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))  # type: ignore
        scale = min(1.0, 0.5 / (norm.item() + 1e-6))
        with torch.no_grad():
            for name, p in model.named_parameters():
                decays = decay_norm_and_bias or p.ndim > 1  # this model's vectors are those
                gradient = p.grad * scale + 0.01 * decays * p  # type: ignore[operator]
                velocity[name] = 0.9 * velocity[name] + gradient
                p -= lr * velocity[name]
    assert scale < 1  # the clipping was at work
    for name, p in model.named_parameters():
        torch.testing.assert_close(update.weights[name], p.detach())
    assert update.num_steps == 4
    assert update.num_examples == 8


@hypothesis_settings(max_examples=25)
@given(st.integers(1, 40), st.integers(2, 45), st.integers(1, 4), st.integers(0, 2))
def test_the_steps_on_so_many_images_are_those_that_are_taken(
    images: int, batch_size: int, epochs: int, head_epochs: int
) -> None:
    """The server rejects a reply with any other number."""
    training = LocalTraining(epochs=epochs, batch_size=batch_size, head_epochs=head_epochs)
    model = toy_model("group")
    personalise(model, ["classifier"])
    data = toy_client([0] * images, Augmentation())
    update, _ = visit(Still(), data, training=training, model=model)
    assert update.num_examples == images
    assert update.num_steps == training.steps_on(images)


class Still(METHODS["fedavg"]):  # type: ignore[misc, valid-type]
    """Its steps cost nothing."""

    name = "still"

    def gradient(self, client: Client, objective: Any, batch: Batch) -> Tensor:
        return torch.zeros(())


@pytest.mark.parametrize(
    "settings",
    [
        ModelSettings(name, norm=norm, head=head)
        for name in get_args(get_type_hints(ModelSettings)["name"])
        for norm in get_args(Norm)
        for head in ("none", "mlp256", "side256")
        if name in NETWORKS or norm == "batch"  # the others have no normalisation layers
    ],
    ids=str,
)
def test_matrices_and_kernels_decay_and_norms_and_biases_need_not(settings: ModelSettings) -> None:
    model = build_model(settings, channels=3, size=32, classes=10, seed=0)
    spared = set()
    for path, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            spared |= {f"{path}.weight", f"{path}.bias"}
        elif isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            spared |= {f"{path}.bias"}
    assert norms_and_biases(model) == spared
    assert {n for n, p in model.named_parameters() if p.ndim > 1}.isdisjoint(spared)


class OwnModule(FeatureModel):
    """A normalisation, a bias and a scale as a user may write them."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = nn.LayerNorm((8, 8))  # its weight is a matrix
        self.scale = nn.Parameter(torch.ones(64))
        self.offset_bias = nn.Parameter(torch.ones(1, 64))
        self.classifier = nn.Linear(64, CLASSES)

    def forward(self, images: Tensor) -> Output:
        z = self.normalise(images).flatten(1) * self.scale + self.offset_bias
        return Output(self.classifier(z), z, (z,))


def test_what_does_not_decay_moves_by_its_gradient_alone() -> None:
    """One step of a module of the user's, with a decay that takes a half of what it acts on."""
    data = toy_client([0, 1, 2, 3] * 2, Augmentation())
    training = LocalTraining(1, 8, lr=0.5, momentum=0.0, weight_decay=1.0, max_grad_norm=0.0)
    broadcast = Broadcast(1, snapshot(OwnModule()), {})
    none, some, all_ = (
        train_client(FEDAVG, OwnModule(), data, broadcast, {}, settings, 0, seed=0)[0].weights
        for settings in (
            replace(training, weight_decay=0.0),
            replace(training, decay_norm_and_bias=False),
            training,
        )
    )
    for name, received in broadcast.weights.items():
        torch.testing.assert_close(all_[name], none[name] - 0.5 * received)
        wanted = all_ if name == "classifier.weight" else none
        torch.testing.assert_close(some[name], wanted[name])


def test_clipping_can_be_switched_off() -> None:
    data = toy_client([0, 1, 2, 3] * 4)
    tight, loose, off = (
        visit(FEDAVG, data, training=replace(TRAINING, max_grad_norm=norm))[0]
        for norm in (0.01, 1e9, 0.0)
    )
    assert sha256(loose.weights) == sha256(off.weights) != sha256(tight.weights)


def test_the_models_earlier_weights_play_no_part() -> None:
    data = toy_client([0, 1, 2, 3] * 4)
    broadcast = Broadcast(1, snapshot(toy_model(seed=5)), {})
    updates = [
        train_client(FEDAVG, toy_model(seed=seed), data, broadcast, {}, TRAINING, 0, seed=0)[0]
        for seed in (1, 2)
    ]
    assert sha256(updates[0].weights) == sha256(updates[1].weights)


def test_a_loss_that_is_not_finite_is_a_divergence() -> None:
    training = replace(TRAINING, lr=1e20, max_grad_norm=0.0)
    with pytest.raises(Diverged, match="no longer finite"):
        visit(FEDAVG, toy_client([0, 1, 2, 3] * 8), training=training)


def test_an_overflow_in_the_last_step_is_a_divergence_too() -> None:
    """The losses were all finite; the weights, and MOON's memory, are not."""
    training = replace(
        TRAINING, epochs=1, batch_size=32, lr=9e37, weight_decay=9e37, max_grad_norm=0.0
    )
    for name in ("fedavg", "moon", "scaffold"):
        with pytest.raises(Diverged):
            visit(METHODS[name](), toy_client([0, 1, 2, 3] * 8), training=training)


def test_evaluation_mode_ends_even_after_an_error() -> None:
    model = toy_model().train()

    def fail_while_evaluating() -> None:
        with evaluating(model):
            assert not model.training
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_while_evaluating()
    assert model.training


@pytest.mark.parametrize(
    "values",
    [
        {"epochs": 0},
        {"batch_size": 1},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr_decay": 1.1},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"max_grad_norm": -1.0},
    ],
)
def test_impossible_settings_are_refused_by_name(values: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"training.{next(iter(values))}"):
        LocalTraining(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
def test_steps_are_those_of_torchs_optimiser(momentum: float, decay_norm_and_bias: bool) -> None:
    """Also where a parameter gets no gradient at first, or never."""

    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early, self.late, self.never = (nn.Linear(3, 3) for _ in range(3))

        def loss(self, step: int) -> Tensor:
            x = torch.full((2, 3), 1.0 + step)
            out: Tensor = self.early(x) + (self.late(x) if step else 0)
            return out.square().sum()

    torch.manual_seed(0)
    mine = Idle()
    theirs = Idle()
    theirs.load_state_dict(mine.state_dict())
    training = replace(
        TRAINING, momentum=momentum, weight_decay=0.1, decay_norm_and_bias=decay_norm_and_bias
    )
    client = Client(0, 1, mine, {}, {}, {}, toy_client([0, 1]), training)  # type: ignore[arg-type]
    spared = [live for name, live in theirs.named_parameters() if "bias" in name]
    others = [live for name, live in theirs.named_parameters() if "bias" not in name]
    oracle = torch.optim.SGD(
        [{"params": others}, {"params": spared, "weight_decay": 0.1 * decay_norm_and_bias}],
        lr=0.01,
        momentum=momentum,
        weight_decay=0.1,
    )
    optimizer = _SGD(client.model, training)
    for step in range(3):
        for model in (mine, theirs):
            model.zero_grad()
            model.loss(step).backward()  # type: ignore[no-untyped-call]
        optimizer.step(0.01)
        oracle.step()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], tensor)


def test_training_does_not_import_torchs_compiler() -> None:
    """It would cost every worker a second and 70 MB."""
    code = (
        "import sys, dcfl\n"
        "dcfl.run(federation={'rounds': 1}, engine={'workers': 1}, output={'report': False})\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(python("-c", code), cwd=folder, check=True)


def test_dropout_is_seeded_on_the_gpu_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one."""
    seeds: dict[int, int] = {}
    forked: list[list[int]] = []

    class Generator:
        def __init__(self, number: int) -> None:
            self.number = number

        def manual_seed(self, seed: int) -> None:
            seeds[self.number] = seed

    def fork(gpus: list[int]) -> AbstractContextManager[None]:
        forked.append(gpus)
        return nullcontext()

    parameter = SimpleNamespace(device=torch.device("cuda", 1))
    model: Any = SimpleNamespace(parameters=lambda: iter([parameter]))
    monkeypatch.setattr(torch.cuda, "default_generators", [Generator(0), Generator(1)])
    before = torch.random.get_rng_state()
    monkeypatch.setattr(torch.random, "fork_rng", fork)
    with _own_randomness(model, 7):
        pass
    torch.random.set_rng_state(before)
    assert (forked, seeds) == ([[1]], {1: 7})
