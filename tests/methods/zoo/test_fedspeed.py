"""FedSpeed against its authors' code, and what its server keeps."""

from dataclasses import replace

import pytest
import torch

from benchmarks.oracles.fedspeed import CASE, LR_DECAY
from benchmarks.oracles.problem import TRAINING, batch_of, in_the_middle, our_rounds
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.methods.zoo.drift import FedSpeed
from dcfl.server.optimizers import FedAvgM
from dcfl.server.server import ServerSettings
from dcfl.tensors import snapshot
from dcfl.testing.toys import toy_client, toy_model, two_rounds, visit
from tests.methods.zoo.oracle import oracle, require_rounds

THEIRS = oracle("fedspeed")


def test_four_rounds_with_partial_participation_end_where_the_authors_do() -> None:
    training = replace(TRAINING, lr_decay=LR_DECAY)
    ours = our_rounds(FedSpeed(**CASE), THEIRS["cohorts"], training=training)
    require_rounds(ours, THEIRS["rounds"], precision=1e-7)  # they add 1e-7 to the gradient's norm


def test_without_a_perturbation_a_step_is_plain_descent_to_the_target() -> None:
    drift = {name: 0.1 * torch.ones_like(t) for name, t in snapshot(in_the_middle().model).items()}
    client = in_the_middle(memory=drift)
    method = FedSpeed(alpha=0.5, rho=0.0)
    method.gradient(client, method.objective(client), batch_of(0))
    plain = torch.autograd.grad(method.objective(client)(batch_of(0)), [*client.model.parameters()])
    for (name, live), own in zip(client.trainable(), plain, strict=True):
        target = client.received[name] - drift[name]
        expected = own + 0.5 * (live.detach() - target)
        torch.testing.assert_close(live.grad, expected, rtol=1e-12, atol=1e-12)


def test_a_client_remembers_the_sum_of_its_ways() -> None:
    rounds = two_rounds(FedSpeed(), "batch", [0, 1, 2, 3] * 3)
    first, second = rounds.first[0], rounds.second[0]
    start = snapshot(toy_model())
    for name, drift in second.memory.items():
        ways = (first.update.weights[name] - start[name]) + (
            second.update.weights[name] - rounds.weights[name]
        )
        torch.testing.assert_close(drift, ways, rtol=1e-4, atol=1e-6)


def test_running_statistics_move_once_a_step() -> None:
    update = visit(FedSpeed(), toy_client([0, 1] * 8)).update
    assert int(update.weights["norms.0.num_batches_tracked"]) == update.num_steps


def test_another_server_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="fedspeed says itself where the server's weights go"):
        Experiment(method=FedSpeed(), server=ServerSettings(optimizer=FedAvgM()))
