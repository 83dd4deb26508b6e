"""A projection head beside the classifier: model.head = "side256"."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dcfl
from dcfl.errors import ConfigError
from dcfl.methods import METHODS
from dcfl.models import ModelSettings, Output, build_model
from dcfl.runs.run import Result

CONTRASTING = {"moon", "fedproc", "fedscl", "dcfl-sw", "dcfl-pw"}


def trained(out: Path, method: str, head: str, workers: int = 1, **more: object) -> Result:
    return dcfl.run(
        out=out,
        method={"name": method, **more},
        model={"head": head},
        data={"clients": 4},
        training={"epochs": 1},
        federation={"rounds": 3, "participation": 0.5},
        engine={"workers": workers},
        output={"report": False},
    )


@pytest.mark.parametrize("name", ["cnn", "lenet", "resnet18"])
@torch.no_grad()
def test_the_classifier_does_not_see_it(name: str) -> None:
    plain = build_model(ModelSettings(name), 3, 16, 5, seed=0).eval()  # type: ignore[arg-type]
    sided = build_model(ModelSettings(name, head="side64"), 3, 16, 5, seed=0).eval()  # type: ignore[arg-type]
    images = torch.randn(4, 3, 16, 16)
    without, with_head = plain(images), sided(images)
    assert torch.equal(without.logits, with_head.logits)
    assert torch.equal(without.embedding, with_head.embedding)
    assert without.projection is None
    assert with_head.projection is not None
    assert with_head.projection.shape == (4, 64)


def test_what_a_term_sees() -> None:
    features, side = torch.zeros(2, 3), torch.ones(2, 4)
    sided, plain = Output(side, features, (), side), Output(side, features, ())
    assert sided.z() is side
    assert sided.z("features") is features
    assert plain.z() is features


@pytest.mark.parametrize("workers", [1, 2])
def test_fedavg_has_the_bits_of_a_model_without_it(workers: int, tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", "fedavg", "none").weights
    sided = trained(tmp_path / "sided", "fedavg", "side256", workers).weights
    assert {name for name in sided if name not in plain} == {
        f"side.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")
    }
    for name, tensor in plain.items():
        assert torch.equal(tensor, sided[name]), name


# FedMA refuses it; FedRep and FedPAC need more than the one epoch of these runs.
@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"fedma", "fedrep", "fedpac"}))
def test_every_method_trains_with_it(method: str, tmp_path: Path) -> None:
    """And those that contrast embeddings train the head."""
    result = trained(tmp_path / "run", method, "side16")
    start = build_model(ModelSettings(head="side16"), 1, 8, 10, seed=0).state_dict()
    moved = not torch.equal(result.weights["side.2.weight"], start["side.2.weight"])
    assert result.summary.rounds == 3
    if method in CONTRASTING:
        assert moved
    if method in ("fedavg", "feddecorr"):
        assert not moved


@pytest.mark.parametrize("method", sorted(CONTRASTING))
def test_a_method_may_look_past_it(method: str, tmp_path: Path) -> None:
    """Then the weights are those of a model without it."""
    past = trained(tmp_path / "past", method, "side16", embedding="features").weights
    plain = trained(tmp_path / "plain", method, "none").weights
    for name, tensor in plain.items():
        assert torch.equal(tensor, past[name]), name


def test_prototypes_have_its_width(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", "dcfl-pw", "side16")
    per_client = 4 * 10 * 16 + 8 * 10  # sums and counts of ten classes
    weights = sum(tensor.nbytes for tensor in run.weights.values())
    assert run.rounds[-1].bytes_up == 2 * (weights + per_client)


@pytest.mark.parametrize("head", ["side", "side0", "mlp", "beside256", "side25600", "mlp-3"])
def test_other_heads_are_refused(head: str) -> None:
    with pytest.raises(ConfigError, match=r'model\.head = ".*": use "none"'):
        ModelSettings(head=head)


def test_a_model_with_it_comes_back(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", "dcfl-sw", "side16")
    model = dcfl.load_model(result.folder)
    assert {name for name in model.state_dict() if name.startswith("side.")}
