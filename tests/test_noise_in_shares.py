"""Noise that clients add in shares: what is in the sum, what it is worth, and the same bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from math import ceil, exp, sqrt
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy import signal, stats

from dcfl import privacy as in_privacy
from dcfl.central_noise import NoisySum
from dcfl.config import experiment_from
from dcfl.engines.engine import Connect
from dcfl.errors import ConfigError, Interrupted
from dcfl.experiment import (
    EngineSettings,
    Experiment,
    FaultSettings,
    FederationSettings,
    OutputSettings,
)
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS, Method
from dcfl.privacy import (
    Draws,
    PrivacySettings,
    Schedule,
    check_budget,
    deviation,
    epsilon_at,
    largest,
    spent,
)
from dcfl.runs.connect import connect
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from dcfl.server.fixed_point import SecureMean
from dcfl.server.optimizers import OPTIMIZERS
from tests.command_line import Call, calls
from tests.engines.runs import TRAINING, Flat, bits, federation
from tests.flower.in_process import in_process
from tests.test_central_noise import PROTOTYPES, Centred

call = pytest.fixture(calls)
FEDAVG = METHODS["fedavg"]()
MODEL = Flat()  # a run trains a copy
ON = PrivacySettings(clip=0.5, noise=0.6, where="sum")
UPLOAD = {"centre": torch.empty(4)}
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


def form(
    clients: int, privacy: PrivacySettings = ON, method: Method = FEDAVG, survivors: int = 0
) -> NoisySum:
    needed = survivors or ServerSettings(secure=True).survivors(clients)
    upload = method.upload_like({}, 4, 4) or {}
    return NoisySum(
        frozenset({"w"}), upload, privacy.clip, clients, needed, privacy, method, seed=0
    )


def sent(size: int, round: int = 1) -> Broadcast:
    weights = {"w": torch.zeros(size, dtype=torch.float64), "count": torch.tensor(3)}
    return Broadcast(round, weights, {})


def reply(change: Any, client: int = 0, upload: Tensors | None = None) -> ClientUpdate:
    weights = {"w": torch.as_tensor(change, dtype=torch.float64), "count": torch.tensor(9)}
    return ClientUpdate(client, weights, upload or {}, 40, 5, {"loss": 0.7, "seconds": 1.5})


# What is in a reply, and in the sum


@pytest.mark.parametrize(
    ("clients", "colluding", "honest"),
    [(2, 0.0, 1), (3, 0.0, 1), (10, 0.0, 6), (10, 0.1, 6), (10, 0.3, 4), (100, 0.25, 41)],
)
def test_noise_is_sized_for_the_fewest_replies_but_those_that_are_known(
    clients: int, colluding: float, honest: int
) -> None:
    """One's own share is known to oneself, so one is never counted."""
    whole = form(clients, replace(ON, colluding=colluding))
    assert whole.honest == honest == whole.survivors - max(1, ceil(colluding * clients))
    assert whole.share == ON.noise / sqrt(honest)


@pytest.mark.parametrize("arrived", [7, 10])
def test_the_sum_has_the_noise_that_is_accounted_or_more(arrived: int) -> None:
    """Kolmogorov and Smirnov's test, wrongly red once in 10,000 seeds; the seed is fixed. Of ten
    clients seven must reply, and six shares are counted: with those alone it is the settings'."""
    size, privacy, whole = 20_000, PrivacySettings(2.0, 1.5, where="sum"), None
    whole, broadcast, fold = form(10, privacy), sent(20_000), None
    assert (whole.survivors, whole.honest) == (7, 6)
    fold = SecureMean(whole)
    exact = torch.zeros(size, dtype=torch.float64)
    for client in range(arrived):
        change = torch.zeros(size, dtype=torch.float64)
        change[client] = 2.0
        exact += change
        fold.add(whole.encode(reply(change, client), broadcast))
    noise = fold.finish(broadcast.weights).direction["w"] * arrived - exact
    expected = 2.0 * 1.5 * sqrt(arrived / 6)
    assert stats.kstest(noise.numpy() / expected, "norm").pvalue > 1e-4
    assert abs(noise.var() / expected**2 - 1) < 5 * sqrt(2 / size)
    unseen = stats.kstest(noise.numpy() / (expected * 0.93), "norm").pvalue
    assert unseen < 1e-4  # seven per cent less would be found out


def test_nothing_else_of_a_reply_is_added() -> None:
    """No length, no share of numbers that were cut, no buffer: whatever depends on one client."""
    whole, broadcast = form(5, method=Centred()), sent(6)
    told = whole.encode(reply(torch.full((6,), 0.1), 3, {"centre": torch.ones(4)}), broadcast)
    assert {name: tensor.shape for name, tensor in told.weights.items()} == {
        "parameters": (6,),
        "others": (4,),
    }
    assert (told.upload, told.num_examples, told.num_steps) == ({}, 1, 0)
    fold = SecureMean(whole)
    fold.add(told)
    folded = fold.finish(broadcast.weights)
    assert folded.buffers == {"count": torch.tensor(3)}
    assert fold.told == {}
    direction = folded.direction["w"]
    assert fold.mean_square == pytest.approx(float(direction.square().sum()))
    assert fold.upload["centre"].shape == (4,)


def test_secret_noise_cannot_be_drawn_again_and_seeded_noise_can() -> None:
    broadcast, zeros = sent(50), reply(torch.zeros(50))
    visits = [(form(4), broadcast), (form(4), sent(50, 2)), (replace(form(4), seed=1), broadcast)]
    drawn = [whole.encode(zeros, told).weights["parameters"] for whole, told in visits]
    drawn.append(form(4).encode(reply(torch.zeros(50), 1), broadcast).weights["parameters"])
    secret = form(4, replace(ON, secret=True))
    drawn += [secret.encode(zeros, broadcast).weights["parameters"] for _ in range(2)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert torch.equal(drawn[0], form(4).encode(zeros, broadcast).weights["parameters"])


@settings(deadline=None)
@given(
    change=arrays.arrays(np.float64, st.integers(1, 40), elements=numbers),
    other=st.floats(-1, 1),
    upload=arrays.arrays(np.float64, 4, elements=numbers),
    clients=st.integers(2, 2000),
    clip=st.floats(1e-3, 1e3),
    noise=st.floats(0.5, 100),
)
def test_no_client_moves_the_sum_further_than_is_accounted(
    change: NDArray[np.float64],
    other: float,
    upload: NDArray[np.float64],
    clients: int,
    clip: float,
    noise: float,
) -> None:
    """The worst pair of data sets of one client that hypothesis finds (opposite ends among them),
    in deviations of the noise of the honest shares, with the rounding: at most 2 / z for the
    weights and as much for the upload."""
    method, privacy = Centred(), PrivacySettings(clip, noise, where="sum")
    whole, broadcast, sizes = form(clients, privacy, method), sent(change.size), []
    ends: list[list[torch.Tensor]] = []
    for factor in (1.0, other - 1 if abs(other) < 0.1 else -other):
        given = reply(factor * change, 0, {"centre": torch.from_numpy(factor * upload)})
        exact = whole.exact(given, broadcast.weights)
        pairs = [*whole.whole(exact, 0, broadcast)]
        times, _ = whole._grid(broadcast.weights)
        draws, bare = Draws("0/1/0/privacy"), []
        for (piece, numbers_sent), width in zip(pairs, (times, in_privacy.TIMES), strict=True):
            bare.append(numbers_sent - draws.steps(numbers_sent, width))
            assert (bare[-1] == bare[-1].round()).all(), piece
        ends.append(bare)
        sizes = [deviation(times), deviation(in_privacy.TIMES)]
    for one, two, of_a_share in zip(*ends, sizes, strict=True):
        assert float((one - two).norm()) <= 2 / noise * of_a_share * sqrt(whole.honest)


@pytest.mark.parametrize("clients", [2, 7, 65, 5000])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("noise", [0.5, 30.0])
def test_no_sum_wraps_whatever_is_drawn(
    clients: int, sign: int, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest change in one number, and the largest number that can be drawn, from all."""

    def extreme(self: Draws, like: torch.Tensor, times: int = in_privacy.TIMES) -> torch.Tensor:
        return torch.full_like(like, sign * largest(times))

    monkeypatch.setattr(Draws, "steps", extreme)
    whole = form(clients, replace(ON, noise=noise), Centred())
    far = {"centre": torch.tensor([sign * 9.0, 0, 0, 0])}
    one = whole.encode(reply([sign * 9.0], 0, far), sent(1)).weights
    for name, bits_of_sum in (("parameters", 31), ("others", 63)):
        total = sign * clients * one[name][0].item()
        assert 0 < total < 2**bits_of_sum


def test_nothing_larger_can_be_drawn() -> None:
    last = len(in_privacy._thresholds()[0])
    part = in_privacy._part(np.array([2**64 - 1], dtype=np.uint64), lambda count: b"\xff" * count)
    assert int(part[0]) == last - in_privacy._LAST == in_privacy._LAST + 1
    assert largest(3) == 4 * (in_privacy._LAST + 1)


# What it is worth


def part() -> NDArray[np.float64]:
    """The probabilities of a part of a draw, from the table."""
    exact = [0, *in_privacy._thresholds()[0], 2**128]
    return np.array([(b - a) / 2**128 for a, b in pairwise(exact)])


def shares(count: int, times: int) -> NDArray[np.float64]:
    """The probabilities of a sum of draws, by Fourier transforms; their errors are below 1e-15."""
    once = part()
    wide = np.zeros(times * (len(once) - 1) + 1)
    wide[::times] = once
    one = total = signal.fftconvolve(wide, once)
    for _ in range(count - 1):
        total = signal.fftconvolve(total, one)
    return np.maximum(total, 0)


@pytest.mark.parametrize("count", [1, 3, 6])
@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_what_arrives_keeps_what_is_accounted(count: int, noise: float) -> None:
    """Delta at the accounted epsilon, from the distribution of the sum of so many shares itself, on
    two sums that are as far apart as can be."""
    probabilities, delta = shares(count, times=1), 1e-5
    width = deviation(1) * sqrt(count)
    steps = round(2 / noise * width)
    epsilon = epsilon_at(steps / width, delta)
    assert epsilon is not None
    accounted = spent(PrivacySettings(1.0, noise, where="sum"), 1)
    assert accounted == pytest.approx(epsilon, rel=1e-3)
    there = np.concatenate([np.zeros(steps), probabilities])[: len(probabilities)]
    lost = np.maximum(0, probabilities - exp(epsilon) * there).sum()
    assert lost == pytest.approx(delta, rel=1e-3)


def test_dp_accounting_says_the_same_of_discrete_gaussians() -> None:
    """Of a discrete Gaussian with the deviation of the sum, convolved numerically."""
    mechanisms = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    noise, sensitivity = 2.0, 400
    width = sensitivity * noise / 2
    single = mechanisms.from_discrete_gaussian_mechanism(
        width, sensitivity=sensitivity, value_discretization_interval=1e-3
    )
    for visits in (1, 5):
        theirs = single.self_compose(visits).get_epsilon_for_delta(1e-5)
        ours = spent(PrivacySettings(1.0, noise, where="sum"), visits)
        assert ours == pytest.approx(theirs, rel=1e-3)


def gaussian(width: Any, reach: int) -> dict[int, Any]:
    """The discrete Gaussian."""
    weights = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * width**2)) for k in around(reach)}
    total = mpmath.fsum(weights.values())
    return {k: weight / total for k, weight in weights.items()}


def around(reach: int) -> range:
    return range(-reach, reach + 1)


def added(one: Mapping[int, Any], other: Mapping[int, Any], times: int = 1) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for a, p in one.items():
        for b, q in other.items():
            found[times * a + b] = found.get(times * a + b, mpmath.mpf(0)) + p * q
    return found


def not_gaussian(width: float, times: int) -> Any:
    """How far a draw of two parts so wide can be from a discrete Gaussian, as a logarithm: what
    Poisson's summation leaves of a Gaussian of deviation width / sqrt(times^2 + 1)."""
    return 2.1 * mpmath.exp(-2 * mpmath.pi**2 * width**2 / (times**2 + 1))


@pytest.mark.parametrize(("width", "times"), [(2, 1), (3, 2)])
@pytest.mark.parametrize("count", [1, 2])
def test_a_sum_of_shares_is_a_discrete_gaussian_but_for_what_is_claimed(
    width: int, times: int, count: int
) -> None:
    """In 40 digits as far as five deviations, for parts narrow enough to see the difference."""
    with mpmath.workdps(40):
        own = gaussian(width, 13 * width)
        draw = total = added(own, own, times)
        for _ in range(count - 1):
            total = added(total, draw)
        whole = width * mpmath.sqrt(count * (times**2 + 1))
        wanted = gaussian(whole, int(16 * whole))
        reach = around(int(5 * whole))
        worst = max(abs(mpmath.log(total[k] / wanted[k])) for k in reach)
        assert worst < count * not_gaussian(width, times)
        assert count > 1 or worst > 0.1 * not_gaussian(width, times)


def test_the_difference_of_what_is_drawn_is_as_small_as_claimed() -> None:
    widest = max(not_gaussian(in_privacy._PART, times) for times in range(1, in_privacy.TIMES + 1))
    assert widest < 1.1 * mpmath.exp(-78)


def test_the_budget_is_that_of_the_visits_and_knows_no_amplification() -> None:
    """The server knows who took part."""
    plan = Schedule(12, 0.5, 3, 20)
    privacy = PrivacySettings(1.0, 4.0, epsilon=2.0, where="sum")
    reached = spent(privacy, plan.most_visits())
    assert reached is not None
    with pytest.raises(ConfigError, match=rf"reach epsilon {reached:.2f} .*privacy.noise = "):
        check_budget(privacy, FEDAVG, plan)
    assert reached == spent(replace(privacy, where="client"), plan.most_visits())


def test_the_verb_says_which_noise_and_how_much_of_it_the_mean_has(call: Call) -> None:
    words = ["--rounds", 3, "--participation", 0.2, "--clients", 50, "--parameters", 400]
    for where in ("client", "sum"):
        code, shown, _ = call("privacy", *words, "--where", where, "--json")
        assert code == 0
        (one,) = json.loads(shown)
    noise = one["noise"]
    reached = spent(PrivacySettings(1.0, noise, where="sum"), Schedule(50, 0.2, 0, 3).most_visits())
    assert reached is not None
    assert reached <= 8
    # Ten reply, seven must, and six shares are counted.
    assert one["on_mean"] == pytest.approx(noise * 20 * sqrt(10 / 6) / 10)
    assert one["harmless_clients"] == pytest.approx(noise * 20 * sqrt(10 / 6) / 0.1 / 0.2)
    code, _, said = call("privacy", "--where", "sum", "--clients", 4)
    assert (code, said.count("\n")) == (2, 1)
    assert "two clients a round" in said


# What is refused


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"privacy": {"where": "sum"}}, "without privacy.clip: nothing is protected"),
        ({"privacy": {"where": "sum", "clip": 1.0}}, "there is none to share"),
        ({"privacy": {"clip": 1.0, "noise": 1.0, "colluding": 0.2}}, "only with privacy.where"),
        ({"server": {"secure": False}}, r"set server.secure = true"),
        ({"privacy": {"quantile": 0.5}}, r"quantile: only with privacy.where = \"server\""),
        ({"federation": {"sampling": "poisson"}}, "as many clients in every round"),
        ({"server": {"aggregation": "median"}}, "compares single replies"),
        ({"method": {"name": "fedma"}}, "looks at single replies"),
        ({"compression": {"up": "int8"}}, "fixed point"),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(tables: dict[str, Any], why: str) -> None:
    usual: dict[str, Any] = {
        "method": {"name": "fedavg"},
        "privacy": {"where": "sum", "clip": 1.0, "noise": 1.0},
        "server": {"secure": True},
    }
    experiment_from(None, usual)
    only = "privacy" if "where" in tables.get("privacy", {}) or "clip" in str(tables) else ""
    changed = {
        name: tables[name] if name == only else {**usual.get(name, {}), **tables.get(name, {})}
        for name in {*usual, *tables}
    }
    with pytest.raises(ConfigError, match=why) as refused:
        experiment_from(None, changed)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"method": METHODS["scaffold"]()}, "not what scaffold, as it is set, sends"),
        ({"method": METHODS["dcfl-pw"]()}, "set method.prototype_normalize = true"),
        ({"privacy": replace(ON, colluding=0.7)}, "nobody may be left whose noise is secret"),
        ({"participation": 0.1}, "the sum of one reply is that reply"),
        ({"privacy": replace(ON, noise=1e6)}, "too much for"),
    ],
)
def test_a_run_that_cannot_be_protected_does_not_begin(
    about: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        made(tmp_path / "run", **about)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_more_clients_than_have_room_in_the_numbers_are_refused() -> None:
    """A little noise makes small steps, and a change is many of them."""
    whole = form(10_000, replace(ON, noise=0.01))
    with pytest.raises(ConfigError, match="does not fit into 32 bits: ask fewer clients"):
        whole.check({"w": torch.zeros(100)})


# Whole runs


def made(
    folder: Path,
    method: Method = FEDAVG,
    privacy: PrivacySettings = ON,
    connect: Connect = connect,
    workers: int = 1,
    optimizer: str = "fedavg",
    crash: float = 0.0,
    participation: float = 1.0,
    rounds: int = 3,
) -> Run:
    experiment = Experiment(
        method=method,
        training=TRAINING,
        federation=FederationSettings(rounds=rounds, participation=participation),
        server=ServerSettings(optimizer=OPTIMIZERS[optimizer](), secure=True),
        engine=EngineSettings(workers=workers, device="cpu"),
        privacy=privacy,
        output=OutputSettings(str(folder), report=False, checkpoint=1),
        faults=FaultSettings(crash=crash),
    )
    return Run(experiment, federation(), MODEL, connect)


def finished(run: Run, stop: int = 0) -> Run:
    for row in run.rounds():
        if row.round == stop:
            run.stop()
    return run


@pytest.mark.parametrize(
    ("method", "about"),
    [
        (FEDAVG, {}),
        (PROTOTYPES, {"optimizer": "fedadam"}),
        (METHODS["fedexp"](), {"participation": 0.5}),
        (METHODS["feddyn"](), {"crash": 0.2}),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_simulation_and_sites_agree_to_the_last_bit_and_so_does_what_is_resumed(
    tmp_path: Path, method: Method, about: dict[str, Any]
) -> None:
    """With masks and shares of keys there, and plain sums here; an upload, a server's optimiser,
    methods with a step of the server, and clients that fail."""
    alone = bits(finished(made(tmp_path / "alone", method, **about)))
    assert bits(finished(made(tmp_path / "pool", method, workers=2, **about))) == alone
    sites = finished(made(tmp_path / "sites", method, connect=in_process(3), **about))
    assert bits(sites)["weights"] == alone["weights"]
    with pytest.raises(Interrupted):
        finished(made(tmp_path / "stopped", method, **about), stop=1)
    resumed = finished(Run.resume(tmp_path / "stopped", model=Flat()))
    assert bits(resumed) == alone
    assert any(row["failed"] for row in alone["rounds"]) == ("crash" in about)


def test_secret_noise_makes_every_run_another_and_the_summary_says_what_was_spent(
    tmp_path: Path,
) -> None:
    secret = replace(ON, secret=True)
    runs = [finished(made(tmp_path / str(one), privacy=secret)) for one in range(2)]
    assert len({bits(run)["weights"] for run in runs}) == 2
    summary = runs[0].result().summary
    assert (summary.epsilon, summary.most_visits) == (spent(ON, 3), 3)
    assert summary.secret_noise


def test_too_few_replies_change_nothing(tmp_path: Path) -> None:
    """The noise of fewer than a sum needs would be too little, in a simulation as at sites."""
    run = finished(made(tmp_path / "run", crash=0.4, rounds=5))
    rounds = bits(run)["rounds"]
    assert {row["ok"] >= 4 for row in rounds} == {True, False}
    scores = [row["loss"] for row in rounds]
    for (before, after), row in zip(pairwise(scores), rounds[1:], strict=True):
        assert (before == after) == (row["ok"] < 4)
