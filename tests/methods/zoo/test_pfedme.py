"""pFedMe against its authors' code."""

from dataclasses import replace

import pytest

from benchmarks.oracles.problem import TRAINING, numbers, our_rounds
from dcfl.messages import Tensors
from dcfl.methods.personal.pfedme import PFedMe
from dcfl.models.parts import personal_and_rest
from dcfl.server.server import ServerSettings
from tests.methods.zoo.oracle import DOUBLE, error, oracle, require_rounds

THEIRS = oracle("pfedme")


@pytest.mark.parametrize("case", range(len(THEIRS["cases"])))
def test_both_models_end_where_the_authors_do(case: int) -> None:
    theirs, memories = THEIRS["runs"][case], dict[int, Tensors]()
    ours = our_rounds(
        PFedMe(**THEIRS["cases"][case]),
        THEIRS["cohorts"],
        ServerSettings(aggregation="samples"),
        replace(TRAINING, lr=THEIRS["rates"][case]),
        memories=memories,
    )
    require_rounds(ours, theirs["rounds"])
    for client, own in enumerate(theirs["own"]):
        assert error(numbers(personal_and_rest(memories[client])[0]), own) <= DOUBLE
        assert error(numbers(ours[-1]), own) > 0.01
