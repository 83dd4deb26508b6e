"""Ditto against its authors' code."""

import pytest

from benchmarks.oracles.problem import Tiny, numbers, our_rounds
from dcfl.messages import Tensors
from dcfl.methods.personal.ditto import Ditto
from dcfl.models.parts import personal_and_rest
from tests.methods.zoo.oracle import DOUBLE, error, oracle, require_rounds

THEIRS = oracle("ditto")


@pytest.mark.parametrize("case", range(len(THEIRS["mus"])))
def test_both_models_end_where_the_authors_do(case: int) -> None:
    theirs, memories = THEIRS["runs"][case], dict[int, Tensors]()
    ours = our_rounds(Ditto(mu=THEIRS["mus"][case]), THEIRS["cohorts"], memories=memories)
    require_rounds(ours, theirs["rounds"])
    for client, own in enumerate(theirs["own"]):
        assert error(numbers(personal_and_rest(memories[client])[0]), own) <= DOUBLE
        assert error(numbers(ours[-1]), own) > 0.01


def test_more_mu_keeps_the_own_model_nearer_to_what_was_received() -> None:
    received = numbers(Tiny().state_dict())

    def apart(mu: float) -> float:
        memories: dict[int, Tensors] = {}
        our_rounds(Ditto(mu=mu), [[0]], memories=memories)
        return error(numbers(personal_and_rest(memories[0])[0]), received)

    assert 0 < apart(3.0) < apart(1.0) < apart(0.0)
