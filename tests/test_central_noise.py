"""Noise at the server: to what it is added, what it is worth, and the same on every engine."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats
from torch import Tensor

from dcfl.amplification import GRAIN, MOST_BANDS, Drawn, bands_of
from dcfl.central_noise import CentralNoise, RoundSums
from dcfl.client import Client
from dcfl.config import from_toml
from dcfl.engines.engine import Connect
from dcfl.errors import CheckpointError, ConfigError, Interrupted
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.federation import FIXED, Sampling, sample_cohort
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS, Method
from dcfl.methods.method import MeanUpload
from dcfl.privacy import (
    DEVIATION,
    WITHIN,
    PrivacySettings,
    Protection,
    Schedule,
    account,
    check_budget,
    check_covered,
    distance,
    epsilon_at,
    noise_for,
    spent_centrally,
)
from dcfl.runs.connect import connect
from dcfl.runs.run import Run
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from dcfl.server.server import RepliesInSum
from tests.command_line import Call, calls
from tests.engines.runs import TRAINING, Flat, bits, federation
from tests.flower.in_process import in_process

call = pytest.fixture(calls)
FEDAVG = METHODS["fedavg"]()
COINS = Sampling(poisson=True)
TURNS = Sampling(in_turn=True)
ON = PrivacySettings(clip=0.5, noise=0.6, where="server")
PROTOTYPES = METHODS["dcfl-pw"](prototype_normalize=True)  # type: ignore[call-arg]
SIZE = 6
MODEL = Flat()  # a run trains a copy
MOVING, TAKING_BACK = replace(ON, quantile=0.5), replace(ON, correlated=True)
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


@dataclass(frozen=True)
class Centred(Method):
    """Sends a vector beside the weights, and keeps the mean of all."""

    neutral = None

    def upload(self, client: Client) -> Tensors:
        return {"centre": torch.full((4,), 1.0 + client.id)}

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {"centre": torch.empty(4)}

    def upload_sensitivity(self) -> dict[str, float]:
        return {"centre": 2.0}

    def merge_mean(self, shared: Tensors, uploads: MeanUpload, population: int) -> Tensors:
        assert uploads.clients == 3  # half of six, however many have replied
        return uploads.cast(uploads.tensors)


def round_of(
    privacy: PrivacySettings, method: Method = FEDAVG, cohort: float = 2.0, round: int = 1
) -> RoundSums:
    sent = {"w": torch.zeros(SIZE, dtype=torch.float64), "count": torch.tensor(3)}
    upload = method.upload_like({}, 4, 4) or {}
    noise = CentralNoise(privacy, method, frozenset({"w"}), upload, cohort, 0)
    return noise.begin(Broadcast(round, sent, {}))


def reply(change: object, client: int = 0, **about: Any) -> ClientUpdate:
    weights = {"w": torch.as_tensor(change, dtype=torch.float64), "count": torch.tensor(9)}
    return ClientUpdate(client, weights, about.get("upload", {}), 1, 0, about.get("metrics", {}))


def direction(sums: RoundSums) -> Tensors:
    return sums.finish(sums.sent.weights).direction


# What is added up


def test_changes_are_clipped_added_up_and_divided_by_the_cohort_that_is_expected() -> None:
    privacy = PrivacySettings(clip=1.0, where="server")
    sums = round_of(privacy, cohort=4.0)
    for change in ([3.0, 4.0, 0, 0, 0, 0], [0.5, 0, 0, 0, 0, 0]):
        sums.add(reply(change))
    wanted = torch.tensor([0.6 + 0.5, 0.8, 0, 0, 0, 0], dtype=torch.float64) / 4
    torch.testing.assert_close(direction(sums), {"w": wanted})
    assert not direction(round_of(privacy))["w"].any()  # nobody has replied


@pytest.mark.parametrize("correlated", [False, True])
@settings(deadline=None)
@given(
    changes=arrays.arrays(
        np.float64, st.tuples(st.integers(1, 4), st.just(SIZE)), elements=numbers
    ),
    upload=arrays.arrays(np.float64, 4, elements=numbers),
    clip=st.floats(1e-3, 1e3),
    noise=st.floats(0.5, 100),
)
def test_no_client_moves_the_sums_further_than_is_accounted(
    changes: np.ndarray, upload: np.ndarray, clip: float, noise: float, correlated: bool
) -> None:
    """The furthest that hypothesis finds, for clients that clip nothing themselves: with and
    without the last one, in deviations of the noise, over all that is released."""
    method = Centred()
    privacy = PrivacySettings(clip=clip, noise=noise, where="server", correlated=correlated)
    privacy = replace(privacy, quantile=0.0 if correlated else 0.5)
    sent = {"centre": torch.from_numpy(upload)}
    ends = []
    for count in (len(changes), len(changes) - 1):
        sums = round_of(privacy, method)
        for change in changes[:count]:
            sums.add(reply(change, upload=sent, metrics={WITHIN: 1.0}))
        ends.append(sums)
    more, fewer = ends
    assert all((total == total.round()).all() for total in more._sums.values())
    apart = [
        (more._sums[n] - fewer._sums[n]).norm() * privacy.grain / DEVIATION for n in more._sums
    ]
    counted = 0.0 if correlated else abs(more._within - fewer._within) / (4 * noise * 0.5)
    # An upload costs as much as the weights do; the count is paid for by more noise on both.
    weights, upload_too = float(apart[0]) ** 2, float(apart[1]) ** 2
    assert weights + counted**2 <= noise**-2 * (1 + 1e-6)
    assert upload_too <= noise**-2
    assert weights + upload_too + counted**2 <= 2 * noise**-2


def images_of(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """How many of each of three classes, and where their embeddings point."""
    counts = rng.integers(0, 30, 3) * (rng.random(3) < 0.6)
    return counts, rng.standard_normal((3, 4))


def prototype_upload(images: tuple[np.ndarray, np.ndarray]) -> Tensors:
    """Each class's embeddings are of length 1 and equal, which makes the longest sums."""
    counts, directions = images
    units = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return {
        "sums": torch.from_numpy(counts[:, None] * units),
        "counts": torch.from_numpy(counts.astype(float)),
    }


@pytest.mark.parametrize("name", ["sums", "counts"])
def test_prototypes_of_the_worst_pair_are_as_far_apart_as_is_accounted(name: str) -> None:
    """The pair is searched for, from many beginnings, by changes that make it worse."""
    rng, worst = np.random.default_rng(0), 0.0

    def apart(pair: list[tuple[np.ndarray, np.ndarray]]) -> float:
        first, second = (PROTOTYPES.clip_upload(prototype_upload(one))[name] for one in pair)
        return float((first - second).norm())

    for _ in range(10):
        pair = [images_of(rng), images_of(rng)]
        for _ in range(150):
            tried = [*pair]
            counts, directions = tried[side := int(rng.integers(2))]
            if rng.random() < 0.2:
                counts = images_of(rng)[0]
            tried[side] = (counts, directions + 0.5 * rng.standard_normal(directions.shape))
            pair = max(pair, tried, key=apart)
        worst = max(worst, apart(pair))
    # Counts are not negative, so that two are never opposite.
    reached = 2.0 if name == "sums" else sqrt(2)
    assert 0.95 * reached < worst <= reached * (1 + 1e-12)
    assert worst <= (PROTOTYPES.upload_sensitivity() or {})[name]


def test_prototypes_are_means_of_what_the_clients_may_send() -> None:
    """Without noise, by hand: of each class the sums by the counts, both by the client's length."""
    sums = round_of(PrivacySettings(clip=1.0, where="server"), PROTOTYPES, cohort=3.0)
    many, one = torch.tensor([300.0, 400.0, 0, 0]), torch.tensor([1.0, 0, 0, 0])
    for counts, at in ((many, 0), (one, 1)):
        embeddings = torch.eye(4)[at].expand(4, 4) * counts[:, None]
        upload = {"sums": embeddings, "counts": counts}
        clipped = PROTOTYPES.clip_upload({n: t.double() for n, t in upload.items()})
        sums.add(reply([0.0] * SIZE, upload=clipped))
    direction(sums)
    shared = RepliesInSum(PROTOTYPES, sums).merged({}, 6, ())
    assert shared["known"].tolist() == [True, True, False, False]
    wanted = torch.zeros(4, 4)
    wanted[0, 0], wanted[0, 1], wanted[1, 0] = 0.6 / 1.6, 1 / 1.6, 1.0
    torch.testing.assert_close(shared["prototypes"], wanted)


def test_prototypes_with_each_clients_own_noise_are_accepted(tmp_path: Path) -> None:
    run = finished(made(tmp_path, PROTOTYPES, replace(ON, where="client")))
    assert {row["outcome"] for row in bits(run)["clients"]} == {"ok"}


def test_the_noise_has_the_deviation_that_is_accounted_and_comes_once_a_round() -> None:
    """Kolmogorov and Smirnov's test, wrongly red once in 10,000 numbers of this file's key."""
    sent = {"w": torch.zeros(40_000, dtype=torch.float64)}
    privacy = PrivacySettings(clip=2.0, noise=1.5, where="server")

    def noise(round: int, replies: int, secret: bool = False) -> Tensor:
        about = CentralNoise(replace(privacy, secret=secret), FEDAVG, frozenset(sent), {}, 8.0, 0)
        sums = about.begin(Broadcast(round, sent, {}))
        for client in range(replies):
            sums.add(ClientUpdate(client, sent, {}, 1, 0, {}))
        return direction(sums)["w"] * 8.0 / 3.0

    one, many, later = noise(1, 1), noise(1, 50), noise(2, 1)
    assert torch.equal(one, many)  # one noise, however many have replied
    assert abs(np.corrcoef(one.numpy(), later.numpy())[0, 1]) < 5 / sqrt(len(one))
    for drawn in (one, later, noise(1, 1, secret=True)):
        assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4
    assert not torch.equal(noise(1, 1, secret=True), noise(1, 1, secret=True))


def test_the_clip_follows_the_quantile() -> None:
    """Andrew and others' rule, by hand: 3 of 4 were within, and half should be."""
    privacy = PrivacySettings(clip=2.0, where="server", quantile=0.5)
    sums = round_of(privacy, cohort=4.0)
    for within in (1.0, 1.0, 0.0, 1.0):
        sums.add(reply([0.0] * SIZE, metrics={WITHIN: within}))
    direction(sums)
    assert float(sums.told["privacy/clip"]) == pytest.approx(2.0 * exp(-0.2 * 0.25))


def test_a_client_clips_to_what_it_is_told_and_says_whether_that_was_shorter() -> None:
    sent = {"w": torch.zeros(4)}
    privacy = PrivacySettings(clip=1.0, noise=1.0, where="server", quantile=0.5)
    protection = Protection(privacy, FEDAVG, frozenset(sent), {}, 0)
    told = Broadcast(2, sent, {"privacy/clip": torch.tensor(3.0)})
    for length, kept, within in ((2.0, 2.0, 1.0), (8.0, 3.0, 0.0)):
        trained = {"w": torch.tensor([length, 0, 0, 0])}
        protected = protection.protect(ClientUpdate(0, trained, {}, 40, 5, {"loss": 1.0}), told)
        assert protected.weights["w"].tolist() == [kept, 0, 0, 0]  # and no noise
        assert protected.metrics == {"seconds": 0.0, WITHIN: within}
        assert (protected.num_examples, protected.num_steps) == (1, 0)


# Noise that takes back part of the noise before it


def dense(drawn: Drawn) -> np.ndarray:
    """C of all rounds."""
    found = np.zeros((drawn.rounds, drawn.rounds))
    for back, band in enumerate(bands_of(drawn.bands)):
        found += np.eye(drawn.rounds, k=-back) * band / GRAIN
    return found


def in_turn(clients: int, size: int, rounds: int, again: int = 0) -> Drawn:
    return Drawn(clients, size / clients, rounds, TURNS, correlated=True, again=again)


def noise_by_round(bands: int, rounds: int, size: int, secret: bool = False) -> np.ndarray:
    """In steps, a row a round."""
    privacy, like = (
        replace(TAKING_BACK, secret=secret),
        {"w": torch.zeros(size, dtype=torch.float64)},
    )
    about = CentralNoise(privacy, FEDAVG, frozenset(like), {}, 2.0, 0, bands)
    drawn = [about.noise(round, like, about._draws(round)) for round in range(1, rounds + 1)]
    return np.stack([one["w"].numpy() for one in drawn])


def test_the_bands_are_the_first_of_the_square_root_of_the_matrix_of_ones() -> None:
    exact = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, 40))])
    root = sum(np.eye(40, k=-back) * one for back, one in enumerate(exact))
    np.testing.assert_allclose(root @ root, np.tril(np.ones((40, 40))), atol=1e-12)
    bands = bands_of(MOST_BANDS)
    np.testing.assert_allclose(np.array(bands[:40]) / GRAIN, exact, atol=0.5 / GRAIN)
    # As the bound on what moves C X asks for.
    assert bands[0] == GRAIN
    assert sorted(bands, reverse=True) == [*bands]
    assert bands[-1] > 0


@pytest.mark.parametrize("bands", [1, 2, 5, 40])
def test_what_the_server_uses_follows_from_sums_with_independent_noise(bands: int) -> None:
    """By dense matrices, to the last bit: w = C x + z is of whole numbers, and x + n can be worked
    out from w alone."""
    rounds, rng = 12, np.random.default_rng(0)
    carried = noise_by_round(bands, rounds, 50)
    fresh = noise_by_round(1, rounds, 50)
    factor = dense(Drawn(bands, 1 / bands, rounds, TURNS, correlated=True))
    assert (np.abs(factor @ carried - fresh) < 1).all()
    sums = GRAIN * rng.integers(-(2**30), 2**30, carried.shape)
    seen = factor @ sums + fresh
    assert (seen == np.rint(seen)).all()
    used = np.zeros_like(seen)
    for round in range(rounds):
        used[round] = seen[round] - np.floor(factor[round, :round] @ used[:round])
    assert (used == sums + carried).all()


@pytest.mark.parametrize(
    ("clients", "size", "rounds"), [(6, 2, 8), (4, 1, 9), (5, 5, 4), (9, 1, 7)]
)
def test_no_client_that_waits_a_turn_moves_the_rounds_further_than_is_accounted(
    clients: int, size: int, rounds: int
) -> None:
    """All rounds that a client may be in, if it waits long enough, and all signs of its changes."""
    drawn = in_turn(clients, size, rounds)
    factor, turn, worst = dense(drawn), clients // size, 0.0
    for there in range(1, 2**rounds):
        visits = [round for round in range(rounds) if there >> round & 1]
        if min(np.diff(visits), default=turn) >= turn:
            for signs in np.ndindex(*[2] * len(visits)):
                moved = factor[:, visits] @ (2 * np.array(signs) - 1)
                worst = max(worst, float(np.linalg.norm(moved)))
    assert drawn.moved == pytest.approx(worst)


@pytest.mark.parametrize(("clients", "size", "rounds"), [(7, 2, 12), (10, 4, 9), (11, 3, 20)])
@pytest.mark.parametrize("stopped", [0, 5])
def test_no_client_of_a_run_moves_it_further_than_is_accounted(
    clients: int, size: int, rounds: int, stopped: int
) -> None:
    """By the schedule, where turns do not end with rounds; and where a process went on with noise
    of its own, from two rounds before the last that was seen."""
    again = 2 if stopped else 0
    drawn = in_turn(clients, size, rounds, again)
    there = np.zeros((rounds, clients))
    for round, row in enumerate(there):
        row[sample_cohort(clients, size / clients, 0, round + 1, TURNS)] = 1
    factor, blocks = dense(drawn), [there]
    if stopped:
        blocks = [there[:stopped], there[stopped - again :]]
    squares = [(factor[: len(one), : len(one)] @ one) ** 2 for one in blocks]
    worst = float(np.sqrt(sum(one.sum(axis=0) for one in squares).max()))
    if stopped:
        assert worst <= drawn.moved
    else:
        assert drawn.moved == pytest.approx(worst)


def test_correlated_noise_has_the_covariance_that_is_accounted() -> None:
    """Wrongly red once in 10,000 keys: all 36 entries, with an error of 5 deviations each."""
    count, rounds, bands = 40_000, 8, 4
    noise = noise_by_round(bands, rounds, count) / DEVIATION
    inverse = np.linalg.inv(dense(Drawn(bands, 1 / bands, rounds, TURNS, correlated=True)))
    wanted, found = inverse @ inverse.T, noise @ noise.T / count
    variances = wanted**2 + np.outer(wanted.diagonal(), wanted.diagonal())
    assert (np.abs(found - wanted) < 5 * np.sqrt(variances / count)).all()


def test_less_of_correlated_noise_is_left_in_the_model() -> None:
    drawn = in_turn(10, 1, 30)
    inverse = np.linalg.inv(dense(drawn))
    assert drawn.left == pytest.approx(np.linalg.norm(inverse.sum(axis=0)) / sqrt(30))
    independent = drawn._replace(correlated=False)
    assert independent.left == 1
    assert independent.moved == sqrt(3)
    assert drawn.left * drawn.moved < 0.6 * independent.moved


def test_taking_turns_is_accounted_as_the_gaussian_that_it_is() -> None:
    drawn = in_turn(20, 2, 25)
    privacy = PrivacySettings(clip=1.0, noise=3.0, where="server", correlated=True)
    for released, method in ((1, FEDAVG), (2, Centred())):
        sigma = 3.0 / sqrt(released) / drawn.moved
        wanted = gaussian_mechanism.get_epsilon_gaussian(sigma, 1e-5)
        assert spent_centrally(privacy, method, drawn) == pytest.approx(wanted, rel=1e-6)
    plan = Schedule(20, 0.1, 0, 25, TURNS)
    once = account(privacy, FEDAVG, plan)["epsilon"]
    assert once == pytest.approx(gaussian_mechanism.get_epsilon_gaussian(3.0 / drawn.moved, 1e-5))
    secret = replace(privacy, secret=True)
    assert account(secret, FEDAVG, plan)["epsilon"] == once  # cohorts are no secret
    assert account(secret, FEDAVG, plan, repeated=3)["epsilon"] > once
    noise = noise_for(2.0, 1e-5, drawn)
    with pytest.raises(ConfigError, match=rf"privacy.noise = {noise:g} would do$"):
        check_budget(replace(privacy, epsilon=2.0), FEDAVG, plan)
    check_budget(replace(privacy, epsilon=2.0, noise=noise), FEDAVG, plan)


def test_secret_noise_is_kept_nowhere_so_that_a_new_process_begins_without() -> None:
    like = {"w": torch.zeros(2000, dtype=torch.float64)}
    secret, seeded = (
        CentralNoise(replace(TAKING_BACK, secret=one), FEDAVG, frozenset(like), {}, 2.0, 0, 3)
        for one in (True, False)
    )
    assert secret.noise(5, like, seeded._draws(5))["w"].equal(seeded._draws(5).steps(like["w"]))
    again = seeded.noise(5, like, seeded._draws(5))["w"]  # the rounds before are drawn once more
    assert again.numpy().tolist() == noise_by_round(3, 5, 2000)[-1].tolist()
    # A round that is done again takes back what was there before it, and nothing of itself.
    assert seeded.noise(5, like, seeded._draws(5))["w"].equal(again)
    assert seeded._past.keys() == {3, 4, 5}
    assert not (noise_by_round(3, 2, 50, True) == noise_by_round(3, 2, 50, True)).any()


# What it is worth


@pytest.mark.parametrize(("noise", "share"), [(0.6, 0.05), (1.0, 0.3), (3.0, 1.0)])
def test_one_round_of_coins_is_worth_what_an_integral_says(noise: float, share: float) -> None:
    """Both orders of the two densities, by quadrature: nothing of dp-accounting."""
    delta = 1e-5
    epsilon = Drawn(100, share, 1, COINS).epsilon(noise, delta)
    x = np.linspace(-20 * noise, 20 * noise + 1, 400_001)
    absent = stats.norm.pdf(x, scale=noise)
    there = (1 - share) * absent + share * stats.norm.pdf(x, loc=1, scale=noise)
    found = max(
        np.trapezoid(np.maximum(0, p - exp(epsilon) * q), x)
        for p, q in ((there, absent), (absent, there))
    )
    assert 0.97 * delta <= found <= delta * (1 + 1e-6)


@pytest.mark.parametrize(
    ("noise", "share", "rounds", "published"),
    [
        (4.0, 0.01, 10_000, 1.26),  # Abadi and others 2016, section 3.2: the moments accountant
        (1.1, 256 / 60_000, 14_062, 3.01),  # TensorFlow Privacy's table for MNIST, 60 epochs
        (1.3, 256 / 60_000, 3_516, 1.19),  # the same, 15 epochs
    ],
)
def test_published_figures_are_upper_bounds_and_near(
    noise: float, share: float, rounds: int, published: float
) -> None:
    ours = Drawn(10**6, share, rounds, COINS).epsilon(noise, 1e-5)
    assert 0.7 * published < ours < published


@pytest.mark.parametrize(
    ("noise", "share", "rounds", "tight", "renyi"),
    [
        (1.0, 0.1, 100, 7.0481, 7.8993),
        (0.6, 0.05, 50, 8.9091, 10.4971),
        (2.0, 0.5, 20, 5.6908, 6.2284),
        (1.1, 256 / 60_000, 14_062, 2.3827, 2.5966),
    ],
)
def test_opacus_says_the_same(
    noise: float, share: float, rounds: int, tight: float, renyi: float
) -> None:
    """Opacus 1.6.0 at delta 1e-5: its PRVAccountant, with an eps_error of 0.001, and its
    RDPAccountant, whose bound is an upper one."""
    ours = Drawn(10**6, share, rounds, COINS).epsilon(noise, 1e-5)
    assert tight - 0.002 < ours < tight + 0.01
    assert ours < renyi


def test_a_fixed_cohort_is_never_worth_less_than_no_sampling_at_all() -> None:
    privacy = PrivacySettings(clip=1.0, noise=8.0, where="server")
    everybody = spent_centrally(privacy, FEDAVG, Drawn(20, 1.0, 10, FIXED))
    assert everybody == epsilon_at(distance(8.0, 10), 1e-5)
    few = spent_centrally(privacy, FEDAVG, Drawn(1000, 0.01, 10, FIXED))
    assert few is not None
    assert everybody is not None
    assert few < everybody / 3
    coins = spent_centrally(privacy, FEDAVG, Drawn(1000, 0.01, 10, COINS))
    assert coins is not None
    assert coins < few
    fewer_left = Drawn(1000, 0.01, 10, replace(FIXED, without=tuple(range(500))))
    assert (spent_centrally(privacy, FEDAVG, fewer_left) or 0) > few  # the same ten of 500


def test_the_noise_that_is_advised_is_enough_and_no_more() -> None:
    drawn = Drawn(1000, 0.05, 50, COINS)
    noise = noise_for(2.0, 1e-5, drawn)
    assert drawn.epsilon(noise, 1e-5) <= 2.0 < drawn.epsilon(0.985 * noise, 1e-5)
    plan = Schedule(1000, 0.05, 0, 50, COINS)
    privacy = PrivacySettings(clip=1.0, noise=0.6, epsilon=2.0, where="server")
    with pytest.raises(ConfigError, match=rf"reach epsilon .*privacy.noise = {noise:g} would do$"):
        check_budget(privacy, FEDAVG, plan)
    check_budget(replace(privacy, noise=noise), FEDAVG, plan)
    # An upload is as much again: the noise of both is larger by the square root of two.
    twice = replace(privacy, noise=noise * sqrt(2))
    assert spent_centrally(twice, Centred(), plan.drawn) == pytest.approx(2.0, rel=0.01)
    weak = replace(privacy, noise=0.49)
    assert spent_centrally(weak, FEDAVG, plan.drawn) is None


def test_rounds_that_were_done_again_with_other_noise_are_counted() -> None:
    plan = Schedule(100, 0.1, 0, 5, COINS)
    privacy = PrivacySettings(clip=1.0, noise=2.0, where="server")
    once = account(privacy, FEDAVG, plan)
    assert account(privacy, FEDAVG, plan, repeated=2) == once  # the same noise: the same model
    again = account(replace(privacy, secret=True), FEDAVG, plan, repeated=2)
    longer = account(replace(privacy, secret=True), FEDAVG, replace(plan, rounds=7))
    assert again == longer
    assert again["epsilon"] > once["epsilon"]


@pytest.mark.slow
def test_the_page_shows_what_the_verb_prints(call: Call) -> None:
    page = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
    found = re.search(r"```sh\ndcfl (privacy .*)\n```\n\n```text\n([^`]*)```", page)
    assert found is not None
    code, shown, _ = call(*found[1].split())
    assert code == 0
    lines = [[line.rstrip() for line in text.strip().splitlines()] for text in (shown, found[2])]
    assert lines[0] == lines[1]


@pytest.mark.slow
def test_what_a_budget_needs(call: Call) -> None:
    """The extrapolation by hand: noise z sqrt(d) / m in clips, and a tenth of that."""
    words = ["--rounds", 3, "--participation", 0.1, "--clients", 50, "--parameters", 400]
    code, shown, _ = call("privacy", "--target-epsilon", 4, *words, "--json")
    assert code == 0
    coins, turns, fixed, alone, _ = json.loads(shown)
    assert coins["noise"] < fixed["noise"] < alone["noise"]
    plan = Drawn(50, 0.1, 3, TURNS, correlated=True)
    assert epsilon_at(plan.moved / turns["noise"], 1e-5) == pytest.approx(4, rel=0.01)
    assert turns["on_mean"] == pytest.approx(turns["noise"] * plan.left * 20 / 5)
    assert Drawn(50, 0.1, 3, COINS).epsilon(coins["noise"], 1e-5) <= 4
    assert coins["on_mean"] == pytest.approx(coins["noise"] * 20 / 5)
    assert coins["harmless_clients"] == pytest.approx(coins["noise"] * 20 / 0.1 / 0.1)
    assert alone["on_mean"] == pytest.approx(alone["noise"] * 20 / sqrt(5))
    assert alone["harmless_cohort"] == pytest.approx((alone["noise"] * 20 / 0.1) ** 2)
    assert call("privacy", "--target-epsilon", 0)[0] == 2


def test_the_configs_of_the_page_can_be_used() -> None:
    page = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()
    blocks = re.findall(
        r"^    \[federation\]\n    participation = 0.05\n(?:(?:    .*)?\n)*", page, re.M
    )
    coins, turns = (from_toml(textwrap.dedent(block)) for block in blocks)
    assert coins.privacy == PrivacySettings(1.0, 1.0, 8.0, where="server")
    assert coins.federation.draws == COINS
    assert turns.privacy == PrivacySettings(1.0, 2.0, where="server", correlated=True)
    assert turns.federation.draws == TURNS


# Who is drawn


def cohorts(sampling: Sampling, rounds: int = 3000, share: float = 0.3) -> list[list[int]]:
    return [sample_cohort(10, share, 0, round, sampling) for round in range(rounds)]


@pytest.mark.parametrize("poisson", [False, True])
@pytest.mark.parametrize("without", [(), (4,), (4, 0, 9)])
def test_clients_are_drawn_as_the_accountant_assumes(
    poisson: bool, without: tuple[int, ...]
) -> None:
    """Wrongly red once in 10,000 seeds: each client, and each pair, as often as it should be."""
    drawn = cohorts(Sampling(poisson, without))
    there = np.zeros((len(drawn), 10))
    for row, cohort in zip(there, drawn, strict=True):
        row[cohort] = 1
    left = [client for client in range(10) if client not in without]
    assert not there[:, list(without)].any()
    share = 0.3 if poisson else 3 / len(left)
    pairs = share**2 if poisson else share * 2 / (len(left) - 1)
    counts = there[:, left].T @ there[:, left]
    for i in range(len(left)):
        assert abs(counts[i, i] / len(drawn) - share) < 4.5 * sqrt(share / len(drawn))
        for j in range(i):
            assert abs(counts[i, j] / len(drawn) - pairs) < 4.5 * sqrt(pairs / len(drawn))
    sizes = {len(cohort) for cohort in drawn}
    assert sizes == {3} if not poisson else {0, 3, 6} < sizes


@pytest.mark.parametrize("poisson", [False, True])
def test_rounds_that_never_had_a_client_are_as_they_were_without_it(poisson: bool) -> None:
    whole, without = cohorts(Sampling(poisson), 200), cohorts(Sampling(poisson, (4,)), 200)
    for before, after in zip(whole, without, strict=True):
        assert {*before} - {4} <= {*after}
        assert len(after) == len(before) - (poisson and 4 in before)


@pytest.mark.parametrize("without", [(), (4, 7)])
def test_in_turn_nobody_is_asked_again_before_everybody_was(without: tuple[int, ...]) -> None:
    turns = replace(TURNS, without=without, secret=True)
    drawn = [sample_cohort(10, 0.3, 3, round, turns) for round in range(1, 41)]
    assert drawn == [sample_cohort(10, 0.3, 3, round, turns) for round in range(1, 41)]
    assert set().union(*drawn[:4]) == {*range(10)} - {*without}
    for client in {*range(10)} - {*without}:
        there = [round for round, cohort in enumerate(drawn) if client in cohort]
        assert {*np.diff(there)} == {3, 4}
    sizes = [len(cohort) for cohort in drawn]
    assert max(sizes) == 3
    assert bool(without) == (min(sizes) < 3)
    # The denominator depends on nobody who is left out.
    assert turns.expected(10, 0.3) == 3
    assert sample_cohort(10, 0.3, 4, 1, turns) != drawn[0]


def test_secret_cohorts_cannot_be_drawn_again() -> None:
    secret = [sample_cohort(40, 0.5, 0, 1, Sampling(True, (), True)) for _ in range(2)]
    assert secret[0] != secret[1]
    federation = FederationSettings(participation=0.5, sampling="poisson")
    privacy = replace(ON, secret=True)
    run = Experiment(method=FEDAVG, federation=federation, privacy=privacy)
    from dcfl.runs.prepare import schedule

    assert schedule(run, 3).sampling.secret
    assert not schedule(replace(run, privacy=ON), 3).sampling.secret
    assert not schedule(replace(run, privacy=replace(privacy, where="client")), 3).sampling.secret


# What is refused


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"where": "server"}, "without privacy.clip"),
        ({"clip": 1.0, "quantile": 0.5}, "only with privacy.where"),
        ({"clip": 1.0, "where": "server", "quantile": 1.0}, "privacy.quantile must lie in"),
        ({"clip": 1.0, "noise": 1.0, "correlated": True}, "noise at the server"),
        ({"clip": 1.0, "where": "server", "correlated": True}, "and privacy.noise"),
        ({**ON.__dict__, "correlated": True, "quantile": 0.5}, "no privacy.quantile"),
    ],
)
def test_settings_that_mean_nothing_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrivacySettings(**values)


@pytest.mark.parametrize(
    ("method", "aggregation", "message"),
    [
        ("fedavg", "median", "looks at single replies"),
        ("fedavg", "krum", "looks at single replies"),
        ("fedavg", "samples", "weighs clients by how much data"),
        ("fedma", "uniform", "fedma looks at single replies"),
        ("scaffold", "uniform", "not what scaffold, as it is set, sends"),
        ("dcfl-pw", "uniform", "set method.prototype_normalize = true"),
        ("fedpcl", "uniform", "not what fedpcl, as it is set, sends"),
    ],
)
def test_what_needs_single_replies_is_refused(method: str, aggregation: str, message: str) -> None:
    made = METHODS[method]()
    with pytest.raises(ConfigError, match=message):
        check_covered(ON, made, aggregation, MODEL, made.upload_like({}, 4, 4))


def test_a_least_number_of_replies_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"leave out federation\.minimum_replies"):
        Experiment(privacy=ON, federation=FederationSettings(minimum_replies=2))


def test_correlated_noise_is_refused_where_clients_take_no_turns() -> None:
    with pytest.raises(ConfigError, match=r'set federation\.sampling = "in-turn"'):
        Experiment(privacy=TAKING_BACK, federation=FederationSettings(sampling="poisson"))
    too_much = replace(TAKING_BACK, noise=DEVIATION / sqrt(MODEL.classifier.weight.numel()) / 4)
    check_covered(replace(too_much, correlated=False), FEDAVG, "uniform", MODEL)
    with pytest.raises(ConfigError, match="is too much for"):
        check_covered(too_much, FEDAVG, "uniform", MODEL)


def test_a_site_that_wants_noise_of_its_own_is_not_content_with_the_servers() -> None:
    assert ON.at_client == 0.0  # which a site's privacy-noise and privacy-epsilon go by


# Whole runs


def made(
    folder: Path,
    method: Method = FEDAVG,
    privacy: PrivacySettings = ON,
    connect: Connect = connect,
    workers: int = 1,
    optimizer: str = "fedavg",
    **about: Any,
) -> Run:
    experiment = Experiment(
        method=method,
        training=TRAINING,
        federation=FederationSettings(**{"rounds": 3, "participation": 0.5, **about}),
        server=ServerSettings(optimizer=OPTIMIZERS[optimizer]()),
        engine=EngineSettings(workers=workers, device="cpu"),
        privacy=privacy,
        output=OutputSettings(str(folder), report=False, checkpoint=1),
    )
    return Run(experiment, federation(), MODEL, connect)


def finished(run: Run, stop: Sequence[int] = ()) -> Run:
    for row in run.rounds():
        if row.round in stop:
            run.stop()
    return run


@pytest.mark.parametrize(
    ("method", "optimizer", "about"),
    [
        (Centred(), "fedadam", {"sampling": "poisson"}),
        (METHODS["feddyn"](), "fedavg", {"sampling": "poisson", "participation": 0.1, "rounds": 5}),
        (PROTOTYPES, "fedavg", {"sampling": "poisson"}),
        (Centred(), "fedadam", {"sampling": "in-turn", "rounds": 5, "privacy": TAKING_BACK}),
    ],
)
def test_the_same_bits_on_every_engine_and_after_a_resume(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
    optimizer: str,
    about: dict[str, Any],
) -> None:
    """With a clip that moves, rounds without a client, an upload and state of all kinds."""
    monkeypatch.setitem(METHODS, method.name, type(method))
    settings = {"method": method, "optimizer": optimizer, "privacy": MOVING, **about}
    alone = finished(made(tmp_path / "alone", **settings))
    wanted = bits(alone)
    assert bits(finished(made(tmp_path / "pool", workers=2, **settings))) == wanted
    flower = finished(made(tmp_path / "flower", connect=in_process(2), **settings))
    assert bits(flower)["weights"] == wanted["weights"]
    with pytest.raises(Interrupted):
        finished(made(tmp_path / "stopped", **settings), stop=(1, 2))
    resumed = finished(Run.resume(tmp_path / "stopped", model=MODEL))
    assert bits(resumed) == wanted
    logged = resumed.result().rounds[-1].logged
    assert "privacy" in about or logged["clip"] != MOVING.clip
    empty = [row for row in alone.result().rounds if not row.sampled]
    assert bool(empty) == (about["sampling"] == "poisson" and about.get("participation") == 0.1)


@pytest.mark.slow
def test_secret_noise_makes_every_run_another(tmp_path: Path) -> None:
    secret = replace(ON, secret=True)
    weights = {bits(finished(made(tmp_path / str(i), privacy=secret)))["weights"] for i in range(2)}
    assert len(weights) == 2


def test_a_run_with_secret_noise_is_not_begun_again_as_if_nobody_had_seen_it(
    tmp_path: Path,
) -> None:
    """Without a checkpoint nothing would count the rounds that were done before."""
    run = made(tmp_path, privacy=replace(ON, secret=True))
    output = replace(run.experiment.output, dir=str(tmp_path / "b"), checkpoint=0)
    with pytest.raises(Interrupted):
        finished(Run(replace(run.experiment, output=output), federation(), MODEL), stop=(2,))
    with pytest.raises(CheckpointError, match="comes on top of what this one has spent"):
        Run.resume(tmp_path / "b", model=MODEL)


def test_the_summary_says_what_was_spent_and_how_often(tmp_path: Path) -> None:
    summary = finished(made(tmp_path, sampling="poisson")).result().summary
    assert summary.epsilon == Drawn(6, 0.5, 3, COINS).epsilon(0.6, 1e-5)
    assert (summary.most_visits, summary.secret_noise) == (None, False)
