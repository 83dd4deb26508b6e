"""What an estimate says, from rates that are given, and what a trial does."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcfl import tensors as named
from dcfl.engines.placement import Placement
from dcfl.errors import ConfigError, RunFolderError, TooFewClients
from dcfl.experiment import (
    EngineSettings,
    Experiment,
    FaultSettings,
    FederationSettings,
    OutputSettings,
)
from dcfl.federation import sample_cohort
from dcfl.local_training import LocalTraining
from dcfl.methods import METHODS, Method
from dcfl.runs import estimate as estimates
from dcfl.runs.estimate import (
    estimate,
    makespan,
    measure,
    peak_bytes,
    total_seconds,
)
from dcfl.runs.prepare import Prepared, prepare
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from tests.engines.runs import federation
from tests.runs.rates import RATES

SIZES = (5, 20, 3, 9, 16, 7)


def prepared(
    method: str = "fedavg",
    workers: int = 1,
    server: ServerSettings | None = None,
    **settings: float,
) -> Prepared:
    """Six clients and twenty test images."""
    chosen = {"rounds": 4, "participation": 0.5, **settings}
    return prepare(
        Experiment(
            method=METHODS[method](),
            training=LocalTraining(epochs=2, batch_size=8, lr=0.05),
            federation=FederationSettings(**chosen),  # type: ignore[arg-type]
            server=server or ServerSettings(),
            engine=EngineSettings(workers=workers, device="cpu"),
        ),
        federation(SIZES, test=20),
    )


seconds = st.floats(1e-4, 10)


@given(st.lists(seconds, min_size=1, max_size=20), st.integers(1, 5), st.lists(seconds, max_size=5))
def test_nobody_idles_while_work_is_left(
    tasks: list[float], workers: int, fillers: list[float]
) -> None:
    total, longest = sum(tasks) + sum(fillers), max([*tasks, *fillers])
    took = makespan(tasks, workers, fillers)
    assert max(total / workers, longest) - 1e-9 <= took <= total / workers + longest + 1e-9
    assert makespan(tasks, 1, fillers) == pytest.approx(total)


def test_test_images_fill_the_gaps() -> None:
    assert makespan([3.0, 2.0, 2.0], 2, [1.0]) == 4.0  # beside the last client
    assert makespan([2.0, 2.0], 2, [1.0, 1.0]) == 3.0
    assert makespan([], 2) == 0.0


def test_rounds_add_up() -> None:
    """Three clients a round, for two epochs. Every evaluation takes two seconds; it is part of the
    next round, but for the last."""
    expected = RATES.warm_up + 2.0
    for number in range(1, 5):
        cohort = sample_cohort(6, 0.5, 0, number)
        visits = sum(2 * SIZES[one] * RATES.visit for one in cohort)
        expected += RATES.overhead * (visits + (2.0 if number > 1 else 0.0))
    assert total_seconds(prepared(), RATES) == pytest.approx(expected)


def first_visits() -> list[float]:
    """Seconds of the clients of the first round."""
    return [2 * SIZES[client] * RATES.visit for client in sample_cohort(6, 0.5, 0, 1)]


def test_what_is_not_done_costs_nothing() -> None:
    every, seldom = prepared(), prepared(evaluate_every=3)
    saved = total_seconds(every, RATES) - total_seconds(seldom, RATES)
    assert saved == pytest.approx(2 * 2.0 * RATES.overhead)
    assert total_seconds(every, RATES, begin=4) == 0.0
    whole, rest = total_seconds(every, RATES), total_seconds(every, RATES, begin=1)
    assert whole - rest == pytest.approx((sum(first_visits()) + 2.0) * RATES.overhead)


def test_clients_own_models_are_scored_at_the_end() -> None:
    """Six of them, for two seconds each."""
    without, own = prepared(), prepared(personal=("classifier",))  # type: ignore[arg-type]
    assert total_seconds(own, RATES) - total_seconds(without, RATES) == pytest.approx(6 * 2.0)
    assert total_seconds(own, RATES, begin=4) == 0.0


def test_long_runs_are_not_followed_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    everybody = prepared(rounds=100, participation=1.0)
    whole = total_seconds(everybody, RATES)
    monkeypatch.setattr(estimates, "FOLLOWED", 50)
    assert total_seconds(everybody, RATES) == pytest.approx(whole, rel=0.01)


def test_workers_share_a_round() -> None:
    alone, two = prepared(rounds=1), prepared(rounds=1, workers=2)
    *smaller, largest = sorted(first_visits())
    together = max(largest, sum(smaller))  # one worker takes two
    assert total_seconds(alone, RATES) == pytest.approx(7 + 1.25 * sum(first_visits()) + 2)
    assert total_seconds(two, RATES) == pytest.approx(7 + 1.25 * together + 2)


def test_memory_counts_what_more_clients_keep() -> None:
    weights = sum(t.nbytes for t in prepared().model.state_dict().values())
    assert peak_bytes(prepared(), RATES) == 10**9 + 10  # one more client's upload
    robust = prepared(server=ServerSettings(aggregation="median"))
    assert peak_bytes(robust, RATES) == 10**9 + 10 + weights
    large = replace(RATES, memory=10**8)
    assert peak_bytes(prepared(), large) == 10**9 + 10 + 4 * 10**8  # four more clients remember
    huge = replace(RATES, memory=10**9)
    assert peak_bytes(prepared(), huge) == 10**9 + 10  # beyond the budget: on disk


@pytest.fixture
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "measure", lambda prepared: RATES)


@pytest.mark.usefixtures("known_rates")
def test_an_estimate_says_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimates, "available_bytes", lambda: 0)
    monkeypatch.setattr(estimates, "memory_of", lambda pid: 10**8)
    found = estimate(prepared())
    assert not found.fits
    assert found.to_json()["fits"] is False
    assert (found.bytes_up, found.bytes_down) == (4 * 3 * 110, 4 * 3 * 100)
    assert found.workers == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("known_rates")
def test_it_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    ready = prepared()
    used = replace(ready.experiment, output=OutputSettings(str(tmp_path)))
    with pytest.raises(RunFolderError, match="not empty"):
        estimate(replace(ready, experiment=used))
    elsewhere = replace(ready.experiment, engine=EngineSettings(name="flower"))
    with pytest.raises(ConfigError, match="dcfl flower run"):
        estimate(replace(ready, experiment=elsewhere))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not precise, which these tests do not need."""
    monkeypatch.setattr(estimates, "LONG_ENOUGH", 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", ["fedavg", "moon", "dcfl-pw", "scaffold"])
def test_a_trial_leaves_nothing_behind(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ready = prepared(method)
    weights, random = named.sha256(ready.model.state_dict()), torch.get_rng_state()
    rates = measure(ready)
    assert named.sha256(ready.model.state_dict()) == weights
    assert torch.equal(torch.get_rng_state(), random)
    assert not list(tmp_path.iterdir())
    model = sum(tensor.nbytes for tensor in ready.model.state_dict().values())
    assert rates.up - rates.upload == model
    assert (rates.memory > 0) == (method in ("moon", "scaffold"))
    assert (rates.upload > 0) == (method in ("dcfl-pw", "scaffold"))
    assert rates.cohort == 3
    assert rates.visit > 0
    assert rates.scored > 0


@pytest.mark.usefixtures("quick")
def test_as_many_clients_at_once_as_there_are_processes() -> None:
    ready = prepared(participation=0.1)  # one client a round
    assert measure(ready).cohort == 1
    cpu = torch.device("cpu")
    assert measure(ready, Placement([cpu, cpu], "")).cohort == 2


@pytest.mark.usefixtures("quick")
def test_neither_faults_nor_a_rule_for_many_replies_stop_a_trial() -> None:
    ready = prepared(participation=1.0, server=ServerSettings(aggregation="krum", byzantine=0.1))
    faults = FaultSettings(crash=1.0)
    broken = replace(ready.runner, faults=faults)
    assert measure(replace(ready, runner=broken)).visit > 0


class Broken(Method):
    def upload(self, client: object) -> dict[str, torch.Tensor]:
        raise RuntimeError("out of order")


def test_a_method_that_cannot_train_is_said() -> None:
    ready = prepared()
    broken = replace(ready, runner=replace(ready.runner, method=Broken()))
    with pytest.raises(TooFewClients, match="out of order"):
        measure(broken)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), [("moon", 1), ("dcfl-pw", 2)])
def test_an_estimate_is_of_the_right_order(method: str, workers: int, tmp_path: Path) -> None:
    experiment = Experiment(
        method=METHODS[method](),
        federation=FederationSettings(rounds=20),
        engine=EngineSettings(workers=workers, device="cpu"),
        output=OutputSettings(str(tmp_path / "run"), report=False),
    )
    expected = estimate(prepare(experiment)).seconds
    run = Run(experiment)
    began = time.perf_counter()
    for _ in run.rounds():
        pass
    took = time.perf_counter() - began
    # How close it is says benchmarks/estimate.py, on a quiet machine.
    assert took / 4 < expected < took * 4
