"""What every entry of METHODS must do."""

import copy
from dataclasses import replace

import pytest
import torch

from dcfl.data import ClientData
from dcfl.messages import Tensors
from dcfl.methods import METHODS, Method
from dcfl.models.layers import Norm
from dcfl.weights import sha256
from tests import toys

MIXED = [0, 0, 0, 1, 1, 2, 2, 3, 0, 1, 2, 3] * 2

pytestmark = [
    pytest.mark.parametrize("norm", ["batch", "group"]),
    pytest.mark.parametrize("name", METHODS),
]


def clients() -> list[ClientData]:
    return [toys.client_data(MIXED), toys.client_data(MIXED[::-1][:17])]


def hashes(method: Method, norm: Norm, data: list[ClientData] | None = None) -> list[str]:
    updates, _ = toys.two_rounds(method, data or clients(), norm=norm)
    return [sha256(update.weights) for update in updates]


def neutral(name: str) -> Method:
    return replace(METHODS[name](), **METHODS[name].neutral)


def assert_finite(tensors: Tensors) -> None:
    assert all(t.isfinite().all() for t in tensors.values() if t.is_floating_point())


def test_the_same_seed_gives_the_same_bits(name: str, norm: Norm) -> None:
    assert hashes(METHODS[name](), norm) == hashes(METHODS[name](), norm)


def test_at_its_neutral_value_it_is_fedavg_to_the_last_bit(name: str, norm: Norm) -> None:
    assert hashes(neutral(name), norm) == hashes(METHODS["fedavg"](), norm)


def test_at_its_default_it_is_not_fedavg(name: str, norm: Norm) -> None:
    differs = hashes(METHODS[name](), norm) != hashes(METHODS["fedavg"](), norm)
    assert differs == (name != "fedavg")


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([2] * 20, id="one class"),
        pytest.param([0, 1], id="two images, no positives"),
        pytest.param([1, 1], id="two images, no negatives"),
        pytest.param([0, 1, 3] * 7, id="class 2 absent everywhere"),
        pytest.param([0, 1, 2, 3, 0, 1, 2, 3, 1], id="a last batch of one"),
    ],
)
def test_degenerate_clients_stay_finite(name: str, norm: Norm, labels: list[int]) -> None:
    updates, shared = toys.two_rounds(METHODS[name](), [toys.client_data(labels)], norm=norm)
    assert_finite(updates[0].weights)
    assert_finite(updates[0].upload)
    assert_finite(shared)
    assert updates[0].num_steps > 0


def test_what_was_received_stays_as_it_was(name: str, norm: Norm) -> None:
    method, data = METHODS[name](), clients()
    weights = {key: value.clone() for key, value in toys.model(norm).state_dict().items()}
    first, memory = toys.trained(method, data[0], norm=norm, weights=weights)
    shared = method.merge({}, [first.upload], population=1)
    before = copy.deepcopy((weights, dict(shared), dict(memory)))
    toys.trained(method, data[0], norm=norm, round=2, weights=weights, shared=shared, memory=memory)
    for kept, now in zip(before, (weights, shared, memory), strict=True):
        assert kept.keys() == now.keys()
        assert all(torch.equal(kept[key], now[key]) for key in kept)


def test_merging_no_upload_changes_nothing(name: str, norm: Norm) -> None:
    _, shared = toys.two_rounds(METHODS[name](), clients(), norm=norm)
    assert METHODS[name]().merge(shared, [], population=5) == shared


def test_running_statistics_are_those_of_the_training_steps(name: str, norm: Norm) -> None:
    """Prototype passes, teachers and second looks must not move BatchNorm's buffers."""
    update, _ = toys.trained(METHODS[name](), clients()[0], norm=norm)
    counters = [value for key, value in update.weights.items() if "num_batches" in key]
    assert all(int(counter) == update.num_steps for counter in counters)
    assert bool(counters) == (norm == "batch")
