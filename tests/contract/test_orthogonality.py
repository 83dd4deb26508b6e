"""Any method with any server side: the paper's claim that DCFL changes the local loss alone."""

from typing import get_args

import pytest

from dcfl.errors import ConfigError
from dcfl.federation import federate
from dcfl.methods import METHODS
from dcfl.server import Server, ServerSettings, ServerState
from dcfl.server.aggregation import Aggregation
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.tensors import sha256, snapshot
from dcfl.testing.toys import TRAINING, toy_model
from tests import toys

ROUNDS = 2  # in the second, what is shared and kept is in play


def trained(method: str, optimizer: str, aggregation: Aggregation) -> ServerState:
    model, data = toy_model(), toys.federated(clients=5)
    names = frozenset(name for name, _ in model.named_parameters())
    settings = ServerSettings(aggregation, OPTIMIZERS[optimizer]())
    server = Server(METHODS[method](), 5, names, TRAINING, settings)
    backend = toys.embedded(method, model, data)
    start = ServerState(0, snapshot(model), {}, {})
    *_, last = federate(server, backend, start, ROUNDS, 0.6, seed=0)
    assert all(client.outcome == "ok" for client in last.clients)
    return last.state


def refused(settings: ServerSettings, method: str) -> bool:
    """Methods that say themselves where the server goes may refuse a server side."""
    try:
        settings.check_method(METHODS[method]())
    except ConfigError:
        return True
    return False


# FedAdam moves parameters most unlike the mean does; all others are for CI.
SERVERS = [
    pytest.param(name, marks=() if name == "fedadam" else pytest.mark.slow) for name in OPTIMIZERS
]


# What is personal meets no server: those methods are for CI, too.
NAMES = [pytest.param(n, marks=pytest.mark.slow if n in toys.PERSONAL else ()) for n in METHODS]


@pytest.mark.parametrize("optimizer", SERVERS)
@pytest.mark.parametrize("method", NAMES)
def test_every_method_trains_under_every_server(method: str, optimizer: str) -> None:
    for aggregation in get_args(Aggregation):
        settings = ServerSettings(aggregation, OPTIMIZERS[optimizer]())
        if refused(settings, method):
            continue
        state = trained(method, optimizer, aggregation)
        for name, tensor in state.weights.items():
            if tensor.is_floating_point():
                assert tensor.isfinite().all(), name
            if name.endswith("running_var"):
                assert (tensor > 0).all(), name


def test_server_sides_differ() -> None:
    hashes = {sha256(trained("fedavg", name, "uniform").weights) for name in OPTIMIZERS}
    assert len(hashes) == len(OPTIMIZERS)
