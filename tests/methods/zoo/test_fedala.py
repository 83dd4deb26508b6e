"""FedALA against its authors' code."""

import pytest

from benchmarks.oracles.problem import numbers, our_rounds
from dcfl.errors import ConfigError
from dcfl.messages import Tensors
from dcfl.methods.personal.fedala import FedALA
from dcfl.models.parts import personal_and_rest
from dcfl.server.server import ServerSettings
from tests.methods.zoo.oracle import DOUBLE, error, oracle, require_rounds

THEIRS = oracle("fedala")


@pytest.mark.parametrize("case", range(len(THEIRS["cases"])))
def test_all_models_and_shares_end_where_the_authors_do(case: int) -> None:
    """The first mixtures of three clients, later ones of all."""
    theirs, memories, settings = THEIRS["runs"][case], dict[int, Tensors](), THEIRS["cases"][case]
    method = FedALA(**{**settings, "parts": tuple(settings["parts"])})
    ours = our_rounds(
        method, THEIRS["cohorts"], ServerSettings(aggregation="samples"), memories=memories
    )
    require_rounds(ours, theirs["rounds"])
    for client, others in enumerate(theirs["own"]):
        own, shares = personal_and_rest(memories[client])
        assert error(numbers(own), others) <= DOUBLE
        assert error(numbers(shares), theirs["shares"][client]) <= DOUBLE
        assert any(share.min() < 0.9 for share in shares.values())


def test_parts_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="none of them is trained"):
        our_rounds(FedALA(parts=("head",)), [[0], [0]])
