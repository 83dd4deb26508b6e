"""What bfloat16 would gain is measured, and the run does not notice."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.engines import half_precision
from dcfl.engines.half_precision import bfloat16_share, bfloat16_units, forward_seconds
from dcfl.models import Output
from dcfl.testing.toys import toy_model
from tests.engines.runs import Flat

IMAGES = torch.rand(2, 1, 8, 8)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="measured in a forked process")


@pytest.mark.parametrize(
    ("capabilities", "units"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "AVX512-BF16"),
        ({"avx512_bf16": True, "amx_bf16": True}, "AMX"),
        ({"avx2": True, "cpu_name": "bf16"}, ""),
        ({}, ""),
    ],
)
def test_units_have_names(capabilities: dict[str, object], units: str) -> None:
    assert bfloat16_units(capabilities) == units


def test_this_cpu_can_be_asked() -> None:
    assert bfloat16_units() in ("", *half_precision.UNITS.values())


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, "bfloat16_units", lambda: "some")
    monkeypatch.setattr(half_precision, "SECONDS", 0.05)


@needs_fork
@pytest.mark.usefixtures("units")
def test_model_and_random_numbers_stay_as_they_are() -> None:
    model = toy_model()
    weights, random = named.sha256(model.state_dict()), torch.get_rng_state()
    assert forward_seconds(model.eval(), IMAGES) > 0
    share = bfloat16_share(model, IMAGES, batch_size=16, threads=1)
    assert share is not None
    assert share > 0
    assert named.sha256(model.state_dict()) == weights
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_without_units_bfloat16_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_precision, "bfloat16_units", lambda: "")
    assert bfloat16_share(toy_model(), IMAGES, 16, 1) is None


class Deadly(Flat):
    def forward(self, images: Tensor) -> Output:
        os._exit(1)


@needs_fork
@pytest.mark.usefixtures("units")
def test_a_failure_is_no_news() -> None:
    assert bfloat16_share(Deadly(), IMAGES, 16, 1) is None
