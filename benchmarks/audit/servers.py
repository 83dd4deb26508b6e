"""One round's end on the server, by somebody else's code and by ours, from the same replies.

Four clients with unequal numbers of images and steps have moved the same server's weights.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.audit.visits import Network, error
from benchmarks.oracles.problem import LABELS, TRAINING, Tiny
from dcfl.messages import ClientUpdate, Tensors
from dcfl.methods import METHODS
from dcfl.server import Server, ServerState
from dcfl.server.server import ServerSettings
from dcfl.tensors import snapshot, subtract

STEPS = [4, 9, 1, 6]
SIZES = [len(labels) for labels in LABELS]
BEFORE = snapshot(Tiny(0))
REPLIES = [
    {name: tensor + 0.1 * snapshot(Tiny(7 + client))[name] for name, tensor in BEFORE.items()}
    for client in range(len(LABELS))
]


def servers(folder: Path) -> Iterator[tuple[str, str, tuple[str, ...], float]]:
    """Framework, method, files, and the error of how far the server moved."""
    sys.path[:0] = [str(folder / "fluke"), str(folder / "flower/baselines/niid_bench")]
    nova = our_move("fedavg", "fednova")
    yield ("fluke", "fednova", ("fluke/algorithms/fednova.py",), error(_fluke_nova(), nova))
    files = ("baselines/niid_bench/niid_bench/strategy.py",)
    yield ("Flower baselines", "fednova", files, error(_flower_nova(), nova))
    exp = our_move("fedexp", "uniform", epsilon=1e-4 / len(LABELS), decay=1.0)
    yield ("fluke", "fedexp", ("fluke/algorithms/fedexp.py",), error(_fluke_exp(), exp))
    del sys.path[:2]


def our_move(name: str, aggregation: Any, **fields: Any) -> Tensors:
    server = Server(
        METHODS[name](**fields), len(LABELS), frozenset(BEFORE), _AnySteps(),
        ServerSettings(aggregation=aggregation),
    )  # fmt: skip
    updates = [
        ClientUpdate(client, weights, {}, SIZES[client], STEPS[client], {})
        for client, weights in enumerate(REPLIES)
    ]
    state = ServerState(0, BEFORE, {}, {})
    after, reports = server.aggregate(state, server.broadcast(state), updates)
    assert all(report.outcome == "ok" for report in reports), reports
    return subtract(after.weights, BEFORE)


class _AnySteps(type(TRAINING)):  # type: ignore[misc]
    """Settings under which any number of steps is plausible."""

    def __init__(self) -> None:
        super().__init__(momentum=0.0)

    def steps_on(self, images: int) -> int:
        return dict(zip(SIZES, STEPS, strict=True))[images]


def _fluke_nova() -> Tensors:
    from fluke.algorithms import fednova

    clients = [SimpleNamespace(index=client) for client in range(len(LABELS))]
    model = Network(BEFORE)
    server = SimpleNamespace(
        model=model, hyper_params=SimpleNamespace(lr=1.0),
        _get_client_weights=lambda eligible: [size / sum(SIZES) for size in SIZES],
        channel=SimpleNamespace(receive=lambda to, who, kind: SimpleNamespace(payload=STEPS[who])),
    )  # fmt: skip
    fednova.FedNovaServer.aggregate(server, clients, [Network(reply) for reply in REPLIES])
    return subtract(snapshot(model), BEFORE)


def _flower_nova() -> Tensors:
    import flwr.common.typing
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

    for name in ("Dict", "List", "Optional", "Tuple", "Union"):  # as in the flwr that it pins
        setattr(flwr.common.typing, name, getattr(typing, name))
    from niid_bench import strategy

    def result(client: int) -> tuple[None, SimpleNamespace]:
        steps = STEPS[client]
        change = [(BEFORE[name] - REPLIES[client][name]).numpy() / steps for name in BEFORE]
        return None, SimpleNamespace(
            parameters=ndarrays_to_parameters(change), num_examples=SIZES[client],
            metrics={"a_i": steps},
        )  # fmt: skip

    own = SimpleNamespace(accept_failures=True, fit_metrics_aggregation_fn=None)
    before = [tensor.numpy() for tensor in BEFORE.values()]
    made, _ = strategy.FedNovaStrategy.aggregate_fit_custom(
        own, 2, before, [result(client) for client in range(len(LABELS))], []
    )
    after = dict(zip(BEFORE, map(torch.from_numpy, parameters_to_ndarrays(made)), strict=True))
    return subtract(after, BEFORE)


def _fluke_exp() -> Tensors:
    from fluke.algorithms import fedexp

    def flat(tensors: Tensors) -> torch.Tensor:
        return torch.cat([tensor.flatten() for tensor in tensors.values()]).float()

    stretch = fedexp._compute_eta(flat(BEFORE), [flat(reply) for reply in REPLIES])
    means = {n: torch.stack([reply[n] for reply in REPLIES]).mean(dim=0) for n in BEFORE}
    return {name: stretch * tensor for name, tensor in subtract(means, BEFORE).items()}
