"""FedProto against its authors' code."""

from dataclasses import replace

import pytest
import torch

from benchmarks.oracles.problem import (
    LABELS,
    TRAINING,
    Tiny,
    batch_of,
    in_the_middle,
    numbers,
    our_rounds,
)
from dcfl.messages import Tensors
from dcfl.methods.personal.fedproto import FedProto
from dcfl.models.parts import personal_and_rest
from tests.methods.zoo.oracle import SINGLE, error, oracle

THEIRS = oracle("fedproto")


@pytest.mark.parametrize("case", range(len(THEIRS["mus"])))
def test_models_and_prototypes_end_where_the_authors_do(case: int) -> None:
    theirs, memories, shared = THEIRS["runs"][case], dict[int, Tensors](), list[Tensors]()
    everybody = [list(range(len(LABELS)))] * len(theirs["prototypes"])
    our_rounds(
        FedProto(mu=THEIRS["mus"][case]),
        everybody,
        training=replace(TRAINING, momentum=THEIRS["momentum"]),
        memories=memories,
        shared=shared,
    )
    for ours, others in zip(shared, theirs["prototypes"], strict=True):
        found = {str(c): vector.tolist() for c, vector in enumerate(ours["prototypes"])}
        assert error(found, others) <= SINGLE  # prototypes are sent in float32
    for client, others in enumerate(theirs["own"]):
        own = numbers(personal_and_rest(memories[client])[0])
        assert error(own, others) <= SINGLE
        assert error(numbers(Tiny().state_dict()), others) > 0.05


def test_a_class_that_nobody_has_seen_adds_nothing() -> None:
    def loss(known: bool) -> float:
        shared = {"prototypes": torch.full((4, 5), 9.0), "known": torch.full((4,), known)}
        client = in_the_middle(0, shared=shared)
        return float(FedProto().objective(client)(batch_of(0)).detach())

    client = in_the_middle(0)
    assert loss(known=False) == float(FedProto().objective(client)(batch_of(0)).detach())
    assert loss(known=True) > loss(known=False) + 1
