from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dcfl.checking import TRAINING, toy_client, toy_model, visit
from dcfl.client import Client, LocalTraining, evaluating
from dcfl.data import Augmentation
from dcfl.errors import ConfigError, Diverged
from dcfl.local_training import train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS
from dcfl.weights import sha256, snapshot

FEDAVG = METHODS["fedavg"]()


def test_two_steps_of_sgd_by_hand() -> None:
    """Momentum, weight decay, clipping and the decayed rate, written out for every parameter."""
    training = LocalTraining(
        epochs=2,
        batch_size=8,
        lr=0.1,
        lr_decay=0.5,
        momentum=0.9,
        weight_decay=0.01,
        max_grad_norm=0.5,
    )
    data = toy_client([0, 1, 2, 3] * 2, Augmentation())
    update, _ = visit(FEDAVG, data, training=training, round=3)

    model = toy_model().train()
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    lr = 0.1 * 0.5 * 0.5  # round 3
    for step, batch in enumerate(data.training_batches(2, 8, 0, 3, 0, second_view=False)):
        model.zero_grad()
        F.cross_entropy(model(batch.images).logits, batch.labels).backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))  # type: ignore
        scale = min(1.0, 0.5 / (norm.item() + 1e-6))
        with torch.no_grad():
            for name, p in model.named_parameters():
                gradient = p.grad * scale + 0.01 * p  # type: ignore[operator]
                velocity[name] = gradient if step == 0 else 0.9 * velocity[name] + gradient
                p -= lr * velocity[name]
    assert scale < 1  # the clipping was at work
    for name, p in model.named_parameters():
        torch.testing.assert_close(update.weights[name], p.detach())
    assert update.num_steps == 2
    assert update.num_examples == 8


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


def test_frozen_models_share_nothing_with_the_live_one() -> None:
    model = toy_model()
    data = toy_client([0, 1])
    who = Client(0, 1, model, snapshot(model), {}, {}, data, TRAINING)
    teacher = who.global_model
    before = sha256(teacher.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert sha256(teacher.state_dict()) == before
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert who.global_model is teacher


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
