"""FedBABU against its authors' code."""

from dataclasses import replace

import pytest
from torch import nn

from benchmarks.oracles.problem import TRAINING, Tiny, numbers, our_rounds
from dcfl.errors import ConfigError
from dcfl.methods.personal.fedbabu import FedBABU
from dcfl.testing.toys import MIXED, toy_client, toy_model, visit
from tests.methods.zoo.oracle import DOUBLE, error, oracle

THEIRS = oracle("fedbabu")


def test_a_clients_training_ends_where_the_authors_does() -> None:
    training = replace(TRAINING, momentum=THEIRS["momentum"], weight_decay=THEIRS["weight_decay"])
    (ours,) = our_rounds(FedBABU(), [[THEIRS["client"]]], training=training)
    assert error(numbers(ours), THEIRS["weights"]) <= DOUBLE
    assert error(numbers(Tiny().state_dict()), THEIRS["weights"]) > 0.05
    assert ours["classifier.weight"].equal(Tiny().classifier.weight)


def test_a_network_without_a_classifier_is_refused() -> None:
    model = toy_model()
    model.last, model.classifier = model.classifier, nn.Identity()  # type: ignore[assignment]
    model.classifier.forward = model.last.forward
    with pytest.raises(ConfigError, match="called `classifier`"):
        visit(FedBABU(), toy_client(MIXED), model=model)
