"""FedRS against its authors' code, and the paper's own form against its equation."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from benchmarks.oracles.problem import (
    Tiny,
    batch_of,
    client_data,
    in_the_middle,
    our_rounds,
    value_and_gradient,
)
from dcfl.methods.zoo.fedlc import FedRS
from dcfl.server.server import ServerSettings
from tests.methods.zoo.oracle import oracle, require_loss, require_rounds

THEIRS = oracle("fedrs")
network = partial(Tiny, bias=False)  # as the authors' classifier


@pytest.mark.parametrize("case", range(len(THEIRS["cases"])))
def test_value_and_gradient_are_the_authors(case: int) -> None:
    client = in_the_middle()
    client.model = network(seed=1)
    loss = FedRS(**THEIRS["cases"][case], scale="share").objective(client)(batch_of(0))
    ours = value_and_gradient(loss, dict(client.model.named_parameters()))
    require_loss(ours, THEIRS["losses"][case])


def test_three_rounds_end_where_the_authors_do() -> None:
    ours = our_rounds(
        FedRS(**THEIRS["cases"][0], scale="share"),
        THEIRS["cohorts"],
        ServerSettings(aggregation="samples"),
        model=network,
    )
    require_rounds(ours, THEIRS["rounds"])


def test_the_papers_form_scales_what_the_client_lacks() -> None:
    """Client 0 has no image of class 3, client 2 none of classes 1 and 2."""
    for number, lacking in ((0, [3]), (2, [1, 2])):
        assert set(range(4)) - set(client_data(number).images.labels.tolist()) == set(lacking)
        client, given = in_the_middle(number), batch_of(number)
        expected = 0.0
        for logits, label in zip(client.model(given.images).logits, given.labels, strict=True):
            scaled = [0.3 * f if c in lacking else f for c, f in enumerate(logits)]
            expected = expected + torch.logsumexp(torch.stack(scaled), 0) - scaled[label]
        loss = FedRS(alpha=0.3, scale="missing").objective(client)(given)
        parameters = dict(client.model.named_parameters())
        require_loss(
            value_and_gradient(loss, parameters),
            value_and_gradient(expected / len(given.labels), parameters),
        )


def test_a_client_with_all_classes_trains_as_fedavg_in_the_papers_form() -> None:
    client = in_the_middle()
    client.data = client_data(1)
    client.data.images.labels[1] = 0  # it had none of class 0
    given = batch_of(1)
    plain = F.cross_entropy(client.model(given.images).logits, given.labels)
    assert torch.equal(FedRS(scale="missing").objective(client)(given), plain)
