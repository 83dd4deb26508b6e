"""FedGen against its authors' code."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.oracles.problem import (
    CLASSES,
    LABELS,
    TRAINING,
    Tiny,
    client_data,
    in_the_middle,
    numbers,
    our_rounds,
)
from dcfl.errors import ConfigError, ProtocolError
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods.zoo.fedgen import FedGen, chosen
from dcfl.server.server import ServerSettings
from dcfl.tensors import apart
from tests.methods.zoo.oracle import SINGLE, error, oracle, require_rounds

THEIRS = oracle("fedgen")


@pytest.mark.parametrize("case", range(len(THEIRS["cases"])))
def test_model_and_generator_are_the_authors_after_each_round(case: int) -> None:
    theirs, shared = THEIRS["runs"][case], list[Tensors]()
    method = FedGen(**THEIRS["settings"], **THEIRS["cases"][case])
    weighted = ServerSettings(aggregation="samples")
    ours = our_rounds(method, THEIRS["cohorts"], weighted, shared=shared)
    require_rounds(ours, theirs["rounds"], SINGLE)  # their weights of clients are in float32
    found = [numbers(apart(told, "generator", "classes")[0]) for told in shared]
    for state, others in zip(found, theirs["generators"], strict=True):
        assert error({name: state[name] for name in others}, others) <= SINGLE
    first, last = (theirs["generators"][at] for at in (0, -1))
    assert error(first, last) > 0.05


def test_classes_are_drawn_from_those_there_are() -> None:
    there = torch.tensor([False, True, False, True, True, False])
    places = torch.tensor([0.0, 0.3, 0.34, 0.66, 0.67, 0.999])
    assert chosen(there, places).tolist() == [1, 1, 3, 3, 4, 4]


def test_features_of_a_class_that_nobody_has_are_not_asked_for() -> None:
    """Clients 0 and 1 of a federation in which nobody has class 3."""
    shared = list[Tensors]()
    small: Any = {"noise": 3, "hidden": 6, "samples": 8, "steps": 2}
    our_rounds(FedGen(**small), [[0], [1], [0]], shared=shared)
    assert [told["classes/known"].tolist() for told in shared] == [
        [True, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
    ]
    assert 3 not in LABELS[0]


def test_what_cannot_be_is_refused() -> None:
    frozen = Tiny()
    frozen.classifier.requires_grad_(False)
    with pytest.raises(ConfigError, match="needs a trained linear layer"):
        FedGen().objective(replace(in_the_middle(), model=frozen))
    honest = FedGen().upload(in_the_middle(0))["counts"]
    assert honest.sum() == TRAINING.epochs * len(client_data(0))
    for forged in (honest + 1, honest - torch.eye(CLASSES, dtype=torch.int64)[3] * 9):
        update = ClientUpdate(0, {}, {"counts": forged}, len(LABELS[0]), 3, {})
        with pytest.raises(ProtocolError, match="counts of images"):
            FedGen().check_upload(update, TRAINING)
    FedGen().check_upload(replace(update, upload={"counts": honest}), TRAINING)
    with pytest.raises(ConfigError, match="needs the mean of all replies"):
        ServerSettings(aggregation="median").check_method(FedGen())
