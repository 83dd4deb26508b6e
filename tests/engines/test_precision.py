"""Half precision inside the network, float32 outside of it, and the same bits everywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dcfl.client import Batch, Client, frozen, observe
from dcfl.errors import ConfigError
from dcfl.local_training import train_client
from dcfl.messages import Broadcast
from dcfl.methods import METHODS, Method, Objective
from dcfl.models import Output
from dcfl.tensors import snapshot
from dcfl.testing.toys import TRAINING as TOY_TRAINING
from dcfl.testing.toys import toy_client, toy_model, visit
from tests.engines.runs import bits, federation, made_ready, trained

HALVES = ["bfloat16", "float16"]
TINY = federation((6, 10, 3))


@pytest.mark.parametrize(
    ("precision", "method"),
    [
        ("bfloat16", "moon"),
        ("bfloat16", "fedsol"),
        ("float16", "fedavg"),
        ("float16", "moon"),
        ("float16", "fedsol"),
        ("float16", "scaffold"),
        ("float16", "dcfl-pw"),
    ],
)
def test_half_precision_is_finite_repeatable_and_the_same_in_a_pool(
    precision: str, method: str, tmp_path: Path
) -> None:
    full, half, pooled = (
        trained(
            tmp_path / f"{name}-{workers}",
            METHODS[method](),
            workers,
            dataset=TINY,
            precision=name,
        )
        for name, workers in (("float32", 1), (precision, 1), (precision, 2))
    )
    assert bits(half) == bits(pooled)
    assert bits(half)["weights"] != bits(full)["weights"]
    assert all(row["ok"] == 3 for row in half.result().rounds)
    weights = half.result().weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32, torch.int64}
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert half.result().rounds[-1]["train_loss"] == pytest.approx(
        full.result().rounds[-1]["train_loss"], rel=0.05
    )


@pytest.mark.parametrize("max_grad_norm", [0.0, 10.0])
def test_float16_trains_with_and_without_clipping(max_grad_norm: float) -> None:
    """Without it, the step itself takes the loss scale out of the gradient."""
    model = toy_model()
    model.autocast = torch.float16
    training = replace(TOY_TRAINING, max_grad_norm=max_grad_norm)
    plain, _ = visit(METHODS["fedavg"](), toy_client([0, 1, 2, 3] * 2), training=training)
    received = Broadcast(1, snapshot(toy_model()), {})
    data = toy_client([0, 1, 2, 3] * 2)
    half, _ = train_client(METHODS["fedavg"](), model, data, received, {}, training, 0, seed=0)
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(half.weights[name], tensor, rtol=0.05, atol=0.02)


def test_a_module_that_is_no_feature_model_trains_in_float32_alone(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(64, 4)

        def forward(self, images: Tensor) -> Output:
            pixels = images.flatten(1)
            return Output(self.classifier(pixels), pixels, (pixels,))

    plain: Any = Plain()
    run = trained(tmp_path / "full", METHODS["fedavg"](), 1, dataset=TINY, model=plain)
    assert all(row["ok"] == row["sampled"] for row in run.result().rounds)
    with pytest.raises(ConfigError, match="must derive from"):
        made_ready(
            tmp_path / "half",
            METHODS["fedavg"](),
            1,
            dataset=TINY,
            model=plain,
            precision="bfloat16",
        )


@dataclass(frozen=True)
class Watching(Method):
    """Fails where anything but float32 reaches a loss."""

    def objective(self, client: Client) -> Objective:
        usual = super().objective(client)

        def loss(batch: Batch) -> Tensor:
            own, seen = client.model(batch.images), observe(client.global_model, batch.images)
            for output in (own, seen):
                for tensor in (output.logits, output.embedding, *output.stages):
                    assert tensor.dtype is torch.float32, tensor.dtype
            assert client.model.autocast is not None
            assert all(live.dtype is torch.float32 for _, live in client.trainable())
            return usual(batch)

        return loss


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("workers", [1, 2])
def test_losses_see_float32_only(precision: str, workers: int, tmp_path: Path) -> None:
    run = trained(
        tmp_path / "run", Watching(), workers, dataset=TINY, rounds=1, precision=precision
    )
    assert run.result().rounds[0]["ok"] == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_inside_of_the_network_is_half(dtype: torch.dtype) -> None:
    model = toy_model()
    inside: list[torch.dtype] = []
    model.classifier.register_forward_hook(lambda *args: inside.append(args[2].dtype))
    model.autocast = dtype
    twin = frozen(model, snapshot(model))
    for each in (model, twin):
        output = each(torch.zeros(2, 1, 8, 8))
        assert output.logits.dtype is output.embedding.dtype is torch.float32
    assert inside == [dtype, dtype]


def test_a_gradient_too_large_for_float16_is_skipped_and_costs_no_other_client(
    tmp_path: Path,
) -> None:
    @dataclass(frozen=True)
    class Steep(Method):
        """The first client's loss overflows in its first step, once it is scaled."""

        def objective(self, client: Client) -> Objective:
            usual = super().objective(client)
            steps = iter([1e36] if client.id == 0 else [])
            return lambda batch: usual(batch) * next(steps, 1.0)

    runs = [
        trained(tmp_path / str(workers), Steep(), workers, dataset=TINY, precision="float16")
        for workers in (1, 2)
    ]
    assert bits(runs[0]) == bits(runs[1])
    outcomes = [row["ok"] + row["failed"] for row in runs[0].result().rounds]
    assert outcomes == [3, 3, 3]
    assert all(row["ok"] >= 2 for row in runs[0].result().rounds)
