"""FedDyn, FedExP and FedDisco against their authors' code: the server's weights, round by round."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.oracles.problem import LABELS, TRAINING, client_data, numbers, our_rounds
from dcfl.client import Client
from dcfl.data import Images
from dcfl.messages import ClientUpdate
from dcfl.methods.fedavg import FedAvg
from dcfl.methods.zoo.feddyn import FedDyn
from dcfl.methods.zoo.fedexp import FedDisco, FedExP
from dcfl.server.server import ServerSettings
from tests.methods.zoo.oracle import SINGLE, error, oracle, require_rounds

BY_SAMPLES = ServerSettings(aggregation="samples")


def test_feddyn_ends_where_the_authors_do() -> None:
    """Some clients come for the second and third time, some for the first: their drifts count."""
    theirs = oracle("feddyn")
    visits = [client for cohort in theirs["cohorts"] for client in cohort]
    assert max(visits.count(client) for client in range(4)) >= 3
    assert len(set(visits)) == 4
    ours = our_rounds(FedDyn(**theirs["cases"][0]), theirs["cohorts"])
    require_rounds(ours, theirs["rounds"], SINGLE)  # they keep weights and drifts in float32


def test_fedexp_ends_where_the_authors_do() -> None:
    theirs = oracle("fedexp")
    training = replace(TRAINING, **theirs["training"])
    ours, plain = (
        our_rounds(method, theirs["cohorts"], BY_SAMPLES, training)
        for method in (FedExP(**theirs["cases"][0]), FedAvg())
    )
    require_rounds(ours, theirs["rounds"])
    assert error(numbers(plain[-1]), theirs["rounds"][-1]) > 0.01  # it did extrapolate


def test_feddisco_ends_where_the_authors_do() -> None:
    theirs = oracle("feddisco")
    training = replace(TRAINING, **theirs["training"])
    ours, plain = (
        our_rounds(method, theirs["cohorts"], BY_SAMPLES, training)
        for method in (FedDisco(**theirs["cases"][0]), FedAvg())
    )
    require_rounds(ours, theirs["rounds"], SINGLE)  # a client uploads its number in float32
    assert error(numbers(plain[-1]), theirs["rounds"][-1]) > 0.01


def reply(client: int) -> ClientUpdate:
    method, data = FedDisco(), client_data(client)
    who: Any = Client(client, 1, None, {}, {}, {}, data, TRAINING)  # type: ignore[arg-type]
    return ClientUpdate(client, {}, method.upload(who), len(data), 1, {})


def test_feddiscos_weights_are_the_authors() -> None:
    theirs = oracle("feddisco")
    for case, weights in zip(theirs["cases"], theirs["weights"], strict=True):
        for cohort, expected in zip(theirs["cohorts"], weights, strict=True):
            replies = [reply(client) for client in cohort]
            ours = torch.tensor(
                FedDisco(**case).weigh(replies, [float(len(LABELS[c])) for c in cohort])
            )
            torch.testing.assert_close(ours / ours.sum(), torch.tensor(expected), rtol=1e-6, atol=0)


def test_feddisco_stands_where_the_authors_divide_by_nothing() -> None:
    """No client is uneven, all shares are cut off, or a reply claims anything at all."""
    even = [replace(reply(0), upload={"discrepancy": torch.tensor(0.0)})] * 2
    assert FedDisco(a=0.5, b=0.0).weigh(even, [3.0, 1.0]) == [3.0, 1.0]
    assert FedDisco(a=9.0, b=0.0).weigh([reply(0), reply(2)], [1.0, 1.0]) == [1.0, 1.0]
    forged = replace(reply(1), upload={"discrepancy": torch.tensor(-1e6)})
    honest = replace(reply(1), upload={"discrepancy": torch.tensor(0.0)})
    method = FedDisco()
    assert method.weigh([reply(0), forged], [1.0, 1.0]) == method.weigh(
        [reply(0), honest], [1.0, 1.0]
    )


def test_feddisco_sends_one_for_a_single_class_and_zero_for_an_even_mix() -> None:
    for labels, expected in (([2] * 7, 1.0), ([0, 1, 2, 3], 0.0), ([0, 0, 1, 1], 0.5)):
        data = client_data(0)
        images = Images(data.images.pixels[: len(labels)], torch.tensor(labels))
        who: Any = Client(0, 1, None, {}, {}, {}, replace(data, images=images), TRAINING)  # type: ignore[arg-type]
        assert float(FedDisco().upload(who)["discrepancy"]) == pytest.approx(expected, abs=1e-7)


def test_fedexp_never_shortens_a_step_and_is_fedavg_where_clients_agree() -> None:
    """A single client: mean |d_i|^2 = |mean d|^2, whose half is below one."""
    cohorts = [[0], [0]]
    ours, plain = (our_rounds(method, cohorts) for method in (FedExP(epsilon=0.0), FedAvg()))
    for own, other in zip(ours, plain, strict=True):
        assert error(numbers(own), numbers(other)) == 0
