"""What leaves a client with [privacy], and what that is worth."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, sqrt
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import optimize, stats
from torch import Tensor, nn

from dcfl.client import Client
from dcfl.config import apply, as_tables, from_toml, parse_settings, to_toml
from dcfl.engines.engine import Connect
from dcfl.engines.runner import client_runner
from dcfl.errors import ConfigError
from dcfl.experiment import EngineSettings, Experiment, FederationSettings, OutputSettings
from dcfl.federation import sample_cohort
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS, Method
from dcfl.methods.loading import load_methods
from dcfl.models import CNN, LeNet
from dcfl.privacy import (
    CLIP,
    DEVIATION,
    Draws,
    PrivacySettings,
    Protection,
    Schedule,
    _part,
    _thresholds,
    account,
    at_site,
    check_budget,
    check_covered,
    distance,
    epsilon_at,
    grid_step,
    in_floats,
    noise_needed,
    releases,
    spent,
)
from dcfl.runs.connect import connect
from dcfl.runs.prepare import privacy_spent, schedule
from dcfl.runs.run import Run
from dcfl.tensors import clip_share
from dcfl.testing.contract import check_method
from tests.engines.runs import TRAINING, Flat, bits, federation
from tests.flower.in_process import in_process

FEDAVG = METHODS["fedavg"]()
ON = PrivacySettings(clip=0.5, noise=0.01)
MODEL = Flat()  # a run trains a copy
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)


def released(
    trained: Tensors,
    received: Tensors,
    privacy: PrivacySettings,
    *,
    round: int = 1,
    client: int = 0,
    seed: int = 0,
    buffers: tuple[str, ...] = (),
) -> ClientUpdate:
    update = ClientUpdate(client, trained, {}, 40, 5, {"loss": 0.7, "seconds": 1.5})
    trainable = frozenset(trained.keys() - {*buffers})
    protection = Protection(privacy, FEDAVG, trainable, {}, seed)
    return protection.protect(update, Broadcast(round, received, {}))


def changes(update: ClientUpdate, received: Tensors) -> Tensor:
    return torch.cat([(update.weights[n] - received[n]).reshape(-1) for n in received])


# The settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip": -1.0}, "privacy.clip must lie in"),
        ({"clip": float("nan")}, "privacy.clip must lie in"),
        ({"clip": float("inf")}, "privacy.clip must lie in"),
        ({"clip": 1.0, "noise": -0.1}, "privacy.noise must lie in"),
        ({"clip": 1.0, "noise": 1.0, "epsilon": 1e4}, "privacy.epsilon must lie in"),
        ({"clip": 1.0, "noise": 1.0, "delta": 0.0}, "privacy.delta must lie in"),
        ({"clip": 1.0, "noise": 1.0, "delta": 1.0}, "privacy.delta must lie in"),
        ({"noise": 1.0}, "set privacy.clip"),
        ({"clip": 1.0, "epsilon": 3.0}, "privacy.epsilon without privacy.noise"),
    ],
)
def test_settings_that_mean_nothing_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrivacySettings(**values)


def test_the_table_is_read_and_written_back() -> None:
    words = ["privacy.clip=1", "privacy.noise=0.5", "privacy.epsilon=3.5", "privacy.secret=true"]
    experiment = apply(Experiment(), parse_settings(words))
    assert experiment.privacy == PrivacySettings(clip=1.0, noise=0.5, epsilon=3.5, secret=True)
    assert from_toml(to_toml(as_tables(experiment))).privacy == experiment.privacy
    assert not Experiment().privacy.active


# Clipping


@settings(deadline=None)
@given(
    change=arrays.arrays(np.float64, arrays.array_shapes(max_dims=3, max_side=5), elements=numbers),
    bias=arrays.arrays(np.float64, 3, elements=numbers),
    clip=st.floats(1e-3, 1e3),
)
def test_a_change_is_clipped_as_a_whole_and_keeps_its_direction(
    change: np.ndarray, bias: np.ndarray, clip: float
) -> None:
    given = {"layer": torch.from_numpy(change), "bias": torch.from_numpy(bias)}
    received = {name: torch.zeros_like(tensor) for name, tensor in given.items()}
    sent = changes(released(given, received, PrivacySettings(clip=clip)), received)
    whole = torch.cat([tensor.reshape(-1) for tensor in given.values()])
    norm = float(whole.norm())
    assert float(sent.norm()) <= clip * (1 + 1e-12)
    wanted = whole * min(1.0, clip / norm) if norm else whole
    torch.testing.assert_close(sent, wanted, rtol=1e-12, atol=1e-300)
    assert not any(tensor.any() for tensor in received.values())  # which are not the client's


def test_clip_share_leaves_short_changes_alone() -> None:
    assert clip_share([torch.tensor([3.0]), torch.tensor([4.0])], 5.0) == 1.0
    assert clip_share([torch.tensor([3.0]), torch.tensor([4.0])], 1.0) == 0.2
    assert clip_share([torch.zeros(3)], 1.0) == 1.0


def test_the_change_is_measured_from_what_was_received() -> None:
    received = {"layer": torch.full((4,), 100.0)}
    reply = released({"layer": torch.full((4,), 103.0)}, received, PrivacySettings(clip=1.0))
    assert torch.equal(reply.weights["layer"], torch.full((4,), 100.5))


# The noise


def test_draws_are_gaussian_whole_numbers_and_independent() -> None:
    draws = Draws("a key")
    first, second = (draws.steps(torch.empty(200_001)).numpy() for _ in range(2))
    for drawn in (first, second, Draws().steps(torch.empty(300_001)).numpy()):
        assert (drawn == np.rint(drawn)).all()
        sample = drawn / DEVIATION
        assert stats.kstest(sample, "norm").pvalue > 1e-4
        assert abs(sample.mean()) < 5 / sqrt(len(sample))
        assert abs(sample.var() - 1) < 5 * sqrt(2 / len(sample))
        assert abs(stats.kurtosis(sample)) < 5 * sqrt(24 / len(sample))
        assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 5 / sqrt(len(sample))
        last_digits = np.bincount(drawn.astype(np.int64) % 16, minlength=16)
        assert stats.chisquare(last_digits).pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / sqrt(len(first))


LAST = (len(_thresholds()[0]) - 1) // 2


def test_the_parts_of_a_draw_have_the_probabilities_of_a_discrete_gaussian() -> None:
    """Against sums in 70 digits."""
    with mpmath.workdps(70):
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * 1024**2)) for k in range(LAST + 400)]
        total = 2 * mpmath.fsum(weights) - 1
        for number in (-LAST, -9000, -4000, -1, 0, 1, 700, 5000, LAST - 1):
            above = mpmath.fsum(weights[abs(number) + (number >= 0) :]) / total
            truth = above if number < 0 else 1 - above
            assert abs(_thresholds()[0][number + LAST] - truth * 2**128) < 2


@pytest.mark.parametrize("noise", [0.5, 0.7, 1.0, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_what_is_drawn_keeps_what_is_accounted(noise: float, delta: float) -> None:
    """Delta at the accounted epsilon, from the table itself, tails and all: one part as noise, on
    two answers that are as far apart as can be."""
    steps = round(distance(noise, 1) * 1024)
    epsilon = epsilon_at(steps / 1024, delta)
    assert epsilon is not None
    exact = [0, *_thresholds()[0], 2**128]
    here = [b - a for a, b in pairwise(exact)]
    there = [0] * steps + here
    factor = mpmath.exp(epsilon)
    lost = mpmath.fsum(
        max(0, p - factor * q) for p, q in zip(here, there[: len(here)], strict=True) if p
    )
    assert float(lost / 2**128) == pytest.approx(delta, rel=1e-3)


def test_noise_whose_tails_are_not_drawn_is_no_guarantee() -> None:
    assert spent(PrivacySettings(clip=1.0, noise=0.49), 1) is None
    with pytest.raises(ConfigError, match=r"would have no guarantee .* privacy.noise = 1\.\d+"):
        check_budget(
            PrivacySettings(clip=1.0, noise=0.4, epsilon=8.0), FEDAVG, Schedule(4, 1.0, 0, 1)
        )


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**128 - 2), min_size=1), st.lists(st.integers(0, 2 * LAST - 1)))
def test_a_part_is_found_by_its_first_bits_as_by_a_search(
    anywhere: list[int], places: list[int]
) -> None:
    exact = _thresholds()[0]
    at = [exact[place] + more for place in places for more in (-1, 0)]
    numbers = [number for number in (*anywhere, *at) if 0 <= number < 2**128 - 1]
    for number in numbers:
        rest = (number % 2**64).to_bytes(8, "little")
        found = _part(np.array([number >> 64], dtype=np.uint64), lambda count, rest=rest: rest)  # type: ignore[misc]
        hits = bisect_right(exact, number)
        # Where the first 64 bits decide, the rest is not asked for.
        assert found[0] + LAST in (hits, bisect_right(exact, number | 2**64 - 1))
        if any(one >> 64 == number >> 64 for one in exact[max(hits - 1, 0) : hits + 1]):
            assert found[0] + LAST == hits


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=3))
def test_draws_have_the_shape_that_is_asked_for(shape: list[int]) -> None:
    drawn = Draws("key").steps(torch.empty(shape))
    assert drawn.shape == torch.Size(shape)
    assert drawn.dtype is torch.float64


@settings(deadline=None)
@given(
    change=arrays.arrays(np.float64, st.integers(1, 40), elements=numbers),
    clip=st.floats(1e-6, 1e6),
    noise=st.floats(1e-3, 1e3),
)
def test_whatever_the_data_is_the_same_numbers_can_be_sent(
    change: np.ndarray, clip: float, noise: float
) -> None:
    """Whole multiples of one step, so that no last bit tells of the data; and two answers are at
    most as many steps apart as is accounted, however they were rounded."""
    step, kept = grid_step(2 * clip, noise, change.size), []
    for sign in (1.0, -1.0):
        trained, received = {"w": torch.from_numpy(sign * change)}, {"w": torch.zeros(change.size)}
        received["w"] = received["w"].double()
        privacy = PrivacySettings(clip=clip, noise=noise)
        sent = changes(released(trained, received, privacy), received)
        steps = (sent / step).round()
        assert torch.equal(steps * step, sent)
        kept.append(steps - Draws("0/1/0/privacy").steps(sent))
    assert float((kept[0] - kept[1]).norm()) <= 2 * DEVIATION / noise


def test_a_clip_at_which_the_noise_would_vanish_is_refused_also_by_a_site() -> None:
    for words in (
        ["privacy.clip=5e-324", "privacy.noise=0.4"],
        ["privacy.clip=9e-7"],
        ["privacy.clip=1.0", "privacy.noise=1e-300"],
    ):
        with pytest.raises(ConfigError, match=r"must be 0 \(off\) or at least"):
            apply(Experiment(), parse_settings(words))
        table = "\n".join(word.replace("privacy.", "") for word in words)
        with pytest.raises(ConfigError, match=r"must be 0 \(off\) or at least"):
            from_toml(f"[privacy]\n{table}\n")


def test_at_the_least_clip_the_signs_of_a_change_are_hidden_as_at_any_other() -> None:
    received = {"w": torch.zeros(256)}
    signs = torch.ones(256).index_fill(0, torch.arange(0, 256, 3), -1.0)
    for clip in (1e-6, 1.0, 1e6):
        privacy = PrivacySettings(clip=clip, noise=0.4)
        replies = [
            released({"w": signs * 1e9}, received, privacy, round=visit) for visit in range(40)
        ]
        right = np.mean([(r.weights["w"].sign() == signs).float().mean() for r in replies])
        assert right == pytest.approx(stats.norm.cdf(1 / 16 / 0.4), abs=0.025)


def test_more_noise_than_the_steps_can_hold_is_refused() -> None:
    privacy = PrivacySettings(clip=1.0, noise=1e3)
    check_covered(privacy, FEDAVG, "uniform", CNN(1, 8, 4, "group"), None)
    with pytest.raises(ConfigError, match="too much for"):
        check_covered(replace(privacy, noise=1e6), FEDAVG, "uniform", CNN(1, 8, 4, "group"), None)


def test_the_noise_of_a_reply_has_the_deviation_that_is_accounted() -> None:
    received = {"layer": torch.zeros(300, 100, dtype=torch.float64), "bias": torch.zeros(5)}
    trained = {name: tensor + 7.0 for name, tensor in received.items()}
    privacy = PrivacySettings(clip=2.0, noise=1.5)
    clipped = changes(released(trained, received, replace(privacy, noise=0.0)), received)
    noise = (changes(released(trained, received, privacy), received) - clipped) / 3.0
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


def test_every_visit_has_noise_of_its_own_and_a_seed_repeats_it() -> None:
    received = {"layer": torch.zeros(50)}
    privacy = PrivacySettings(clip=1.0, noise=1.0)
    visits = [{}, {"round": 2}, {"client": 1}, {"seed": 1}, {"seed": 2**32}]
    sent = [released(received, received, privacy, **visit).weights["layer"] for visit in visits]
    assert all(not torch.equal(a, b) for i, a in enumerate(sent) for b in sent[:i])
    assert torch.equal(sent[0], released(received, received, privacy).weights["layer"])


def test_secret_noise_cannot_be_drawn_again() -> None:
    received = {"layer": torch.zeros(50)}
    privacy = PrivacySettings(clip=1.0, noise=1.0, secret=True)
    once, again = (released(received, received, privacy).weights["layer"] for _ in range(2))
    seeded = released(received, received, replace(privacy, secret=False)).weights["layer"]
    assert not torch.equal(once, again)
    assert not torch.equal(once, seeded)


def test_a_site_keeps_its_noise_to_itself() -> None:
    assert at_site(ON) == replace(ON, secret=True)


# What else would leave


def test_nothing_but_what_is_protected_depends_on_the_data() -> None:
    received = {"layer": torch.zeros(4), "statistics": torch.ones(2), "steps": torch.tensor(3)}
    trained = {"layer": torch.ones(4), "statistics": torch.zeros(2), "steps": torch.tensor(9)}
    buffers = ("statistics", "steps")
    reply = released(trained, received, ON, buffers=buffers)
    assert list(reply.weights) == list(trained)
    assert reply.upload == {}
    assert all(torch.equal(reply.weights[name], received[name]) for name in buffers)
    assert (reply.num_examples, reply.num_steps) == (1, 0)
    assert reply.metrics == {"seconds": 1.5}  # a simulation has a clock of its own
    secret = released(trained, received, replace(ON, secret=True), buffers=buffers)
    assert secret.metrics == {"seconds": 0.0}


@dataclass(frozen=True)
class Talkative(Method):
    def upload(self, client: Client) -> Tensors:
        return {"labels": torch.zeros(3)}


class Tied(Flat):
    def __init__(self) -> None:
        super().__init__()
        self.twin = self.classifier


@pytest.mark.parametrize(
    ("method", "aggregation", "model", "message"),
    [
        (
            METHODS["scaffold"](),
            "uniform",
            Flat(),
            r"not what scaffold, as it is set, sends .* method.name",
        ),
        (
            METHODS["dcfl-pw"](),
            "uniform",
            Flat(),
            r"not what dcfl-pw, as it is set, sends .* such as fedavg",
        ),
        (METHODS["fedproc"](), "uniform", Flat(), "not what fedproc, as it is set, sends"),
        (METHODS["fedpcl"](), "uniform", Flat(), "not what fedpcl, as it is set, sends"),
        (
            Talkative(),
            "uniform",
            Flat(),
            r"not what talkative, as it is set, sends .* define upload_sensitivity",
        ),
        (FEDAVG, "samples", Flat(), 'use "uniform"'),
        (FEDAVG, "fednova", Flat(), 'use "uniform"'),
        (FEDAVG, "uniform", CNN(1, 8, 4), 'set model.norm = "group"'),
        (FEDAVG, "uniform", Tied(), "share parameters"),
    ],
)
def test_what_is_not_covered_is_refused(
    method: Method, aggregation: str, model: nn.Module, message: str
) -> None:
    check_covered(PrivacySettings(), method, aggregation, model)
    with pytest.raises(ConfigError, match=message):
        check_covered(ON, method, aggregation, model)


@pytest.mark.parametrize("norm", ["group", "batch-nostats"])
@pytest.mark.parametrize(
    "name",
    sorted(
        METHODS.keys()
        - {"scaffold", "dcfl-pw", "fedproc", "fedpcl", "feddisco", "feddc", "q-fedavg", "ccvr"}
        - {"ifca", "fedproto", "fedpac", "fedgen"}
    ),
)
def test_all_other_methods_are_covered(name: str, norm: Any) -> None:
    check_covered(ON, METHODS[name](), "uniform", CNN(1, 8, 4, norm))


def test_the_accounted_distance_is_reached() -> None:
    """So that less would be wrong."""
    here, there = {"w": torch.full((9,), 50.0)}, {"w": torch.full((9,), -50.0)}
    start = {"w": torch.zeros(9)}
    both = [changes(released(w, start, PrivacySettings(clip=3.0)), start) for w in (here, there)]
    assert float((both[0] - both[1]).norm()) == pytest.approx(6.0)


# A method of the user's own


@dataclass(frozen=True)
class Measuring(Method):
    """Sends two tensors of different sizes, and says how far apart they can be."""

    def upload(self, client: Client) -> Tensors:
        return {"mean": torch.ones(4, 64), "spread": torch.full((3,), float(client.id + 1))}

    def merge(self, shared: Tensors, uploads: Sequence[Tensors], population: int) -> Tensors:
        return (
            {"mean": torch.stack([u["mean"] for u in uploads]).mean(dim=0)} if uploads else shared
        )

    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Tensors:
        return {"mean": torch.empty(classes, width), "spread": torch.empty(3)}

    def upload_sensitivity(self) -> Mapping[str, float] | None:
        return {"mean": 6.0, "spread": 0.5}


def sent_upload(method: Method, upload: Tensors, privacy: PrivacySettings, **visit: int) -> Tensors:
    example = {name: torch.empty_like(tensor, device="meta") for name, tensor in upload.items()}
    protection = Protection(privacy, method, frozenset({"w"}), example, 0)
    weights = {"w": torch.zeros(2)}
    update = ClientUpdate(visit.get("client", 0), weights, upload, 40, 5, {})
    return protection.protect(update, Broadcast(visit.get("round", 1), weights, {})).upload


@settings(deadline=None)
@given(
    mean=arrays.arrays(np.float64, arrays.array_shapes(max_dims=3, max_side=5), elements=numbers),
    spread=arrays.arrays(np.float64, 3, elements=numbers),
)
def test_an_upload_is_clipped_tensor_by_tensor(mean: np.ndarray, spread: np.ndarray) -> None:
    upload = {"mean": torch.from_numpy(mean), "spread": torch.from_numpy(spread)}
    sent = sent_upload(Measuring(), upload, PrivacySettings(clip=9.0))
    for name, longest in (("mean", 3.0), ("spread", 0.25)):
        assert float(sent[name].norm()) <= longest * (1 + 1e-12)
        share = min(1.0, longest / max(float(upload[name].norm()), 1e-300))
        torch.testing.assert_close(sent[name], upload[name] * share, rtol=1e-12, atol=1e-300)


def test_the_noise_of_an_upload_has_the_deviation_that_is_accounted() -> None:
    upload = {"mean": torch.full((200, 100), 3.0), "spread": torch.ones(10_001).double()}
    privacy = PrivacySettings(clip=9.0, noise=1.5)
    clipped = sent_upload(Measuring(), upload, replace(privacy, noise=0.0))
    sent = sent_upload(Measuring(), upload, privacy)
    assert [sent[name].dtype for name in sent] == [torch.float32, torch.float64]
    for name, sensitivity in (("mean", 6.0), ("spread", 0.5)):
        deviation = 1.5 * sqrt(2) * sensitivity / 2  # the clip of the weights plays no part
        noise = ((sent[name].double() - clipped[name]) / deviation).flatten().numpy()
        assert stats.kstest(noise, "norm").pvalue > 1e-4
        assert abs(noise.var() - 1) < 5 * sqrt(2 / len(noise))
    both = [(sent[name].double() - clipped[name]).flatten()[:10_000] for name in sent]
    assert abs(np.corrcoef(*(noise.numpy() for noise in both))[0, 1]) < 0.05


def test_every_upload_has_noise_of_its_own_which_a_seed_repeats() -> None:
    upload = {"mean": torch.zeros(20), "spread": torch.zeros(20)}
    privacy = PrivacySettings(clip=1.0, noise=1.0)
    visits: list[dict[str, int]] = [{}, {"round": 2}, {"client": 1}]
    sent = [sent_upload(Measuring(), upload, privacy, **visit)["mean"] for visit in visits]
    assert all(not torch.equal(a, b) for i, a in enumerate(sent) for b in sent[:i])
    assert torch.equal(sent[0], sent_upload(Measuring(), upload, privacy)["mean"])
    secret = replace(privacy, secret=True)
    once, again = (sent_upload(Measuring(), upload, secret)["mean"] for _ in range(2))
    assert not torch.equal(once, again)


def test_the_distance_of_two_uploads_is_the_accounted_one_and_is_reached() -> None:
    far = {"mean": torch.full((9,), 50.0), "spread": torch.full((9,), 50.0)}
    opposite = {name: -tensor for name, tensor in far.items()}
    noise, squared = 1.5, 0.0
    one, other = (
        sent_upload(Measuring(), upload, PrivacySettings(clip=1.0)) for upload in (far, opposite)
    )
    for name, sensitivity in (("mean", 6.0), ("spread", 0.5)):
        apart = float((one[name] - other[name]).norm())
        assert apart == pytest.approx(sensitivity)
        squared += (apart / (noise * sqrt(2) * sensitivity / 2)) ** 2
    assert squared == pytest.approx((2 / noise) ** 2)  # as much as the weights


def test_an_upload_costs_as_much_as_the_weights_and_is_reported() -> None:
    privacy, plan = PrivacySettings(clip=1.0, noise=8.0, delta=1e-6), Schedule(4, 1.0, 0, 3)
    assert (releases(FEDAVG), releases(Measuring())) == (1, 2)
    entry = account(privacy, Measuring(), plan)
    assert entry["epsilon"] == pytest.approx(analytic_epsilon(sqrt(8.0 * 3) / 8, 1e-6))
    assert entry["most_visits"] == 3
    assert entry["epsilon"] > account(privacy, FEDAVG, plan)["epsilon"]


def test_a_budget_counts_the_upload_and_what_is_advised_fits() -> None:
    plan = Schedule(4, 1.0, 0, 10)
    weights_alone = spent(PrivacySettings(clip=1.0, noise=8.0), 10)
    assert weights_alone is not None
    privacy = PrivacySettings(clip=1.0, noise=8.0, epsilon=weights_alone * 1.01)
    check_budget(privacy, FEDAVG, plan)
    with pytest.raises(ConfigError, match="at most 5 rounds fit") as refusal:
        check_budget(privacy, Measuring(), plan)
    check_budget(privacy, Measuring(), replace(plan, rounds=5))
    needed = re.search(r"privacy.noise = ([\d.]+) would do", str(refusal.value))
    assert needed is not None
    check_budget(replace(privacy, noise=float(needed[1])), Measuring(), plan)


@dataclass(frozen=True)
class Undescribed(Measuring):
    def upload_like(self, parameters: Tensors, classes: int, width: int) -> Any:
        return None


@dataclass(frozen=True)
class Claiming(Measuring):
    claim: float | None = None

    def upload_sensitivity(self) -> Mapping[str, float] | None:
        return None if self.claim is None else {"mean": self.claim, "spread": 1.0}


@dataclass(frozen=True)
class Incomplete(Measuring):
    def upload_sensitivity(self) -> Mapping[str, float] | None:
        return {"mean": 1.0}


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Claiming(), "not what claiming, .* define upload_sensitivity"),
        (Undescribed(), "must not depend on the data: define upload_like"),
        (Incomplete(), "must name the same tensors; only one of them has spread"),
        *(
            (Claiming(bad), "of mean must be at least 1e-06")
            for bad in (0.0, -1.0, float("nan"), 1e9)
        ),
    ],
)
def test_an_upload_that_is_not_bounded_is_refused(
    method: Method, message: str, tmp_path: Path
) -> None:
    for privacy in (ON, replace(ON, noise=0.0)):
        with pytest.raises(ConfigError, match=message) as refusal:
            trained(tmp_path / "run", method, 1, privacy)
        assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "upload",
    [
        {"mean": torch.ones(4)},
        {"mean": torch.ones(4), "spread": torch.ones(3), "labels": torch.ones(1)},
        {"mean": torch.ones(5), "spread": torch.ones(3)},
        {"mean": torch.ones(4), "spread": torch.ones(3).double()},
    ],
)
def test_what_was_not_described_does_not_leave(upload: Tensors) -> None:
    example = {"mean": torch.empty(4), "spread": torch.empty(3)}
    protection = Protection(ON, Measuring(), frozenset(), example, 0)
    with pytest.raises(ConfigError, match="only what upload_like of measuring describes"):
        protection.protect(ClientUpdate(0, {}, upload, 1, 1, {}), Broadcast(1, {}, {}))


def test_what_counts_leaves_in_floating_point() -> None:
    example = {"mean": torch.empty(4), "spread": torch.empty(2, dtype=torch.int64)}
    upload = {"mean": torch.zeros(4), "spread": torch.tensor([30, 40])}
    sent = ClientUpdate(0, {}, upload, 40, 5, {})
    for privacy in (replace(ON, noise=0.0), ON, replace(ON, where="server")):
        protection = Protection(privacy, Measuring(), frozenset(), example, 0)
        left = protection.protect(sent, Broadcast(1, {}, {})).upload
        assert left["spread"].dtype == torch.float64
        if not privacy.at_client:  # half the sensitivity
            assert float(left["spread"].norm()) == pytest.approx(0.25)
        assert {name: one.dtype for name, one in left.items()} == {
            name: one.dtype for name, one in in_floats(example).items()
        }


def test_a_clip_that_changes_shapes_is_caught() -> None:
    class Shortening(Measuring):
        def clip_upload(self, upload: Tensors) -> Tensors:
            return {name: tensor[:1] for name, tensor in upload.items()}

    with pytest.raises(ConfigError, match="only what upload_like of shortening describes"):
        sent_upload(Shortening(), {"mean": torch.ones(4), "spread": torch.ones(3)}, ON)


def test_weights_have_the_same_noise_with_an_upload_and_without() -> None:
    received, trained = {"w": torch.zeros(5)}, {"w": torch.ones(5)}
    upload = {"mean": torch.ones(4), "spread": torch.ones(3)}
    update = ClientUpdate(0, trained, upload, 40, 5, {})
    protection = Protection(ON, Measuring(), frozenset({"w"}), upload, 0)
    reply = protection.protect(update, Broadcast(1, received, {}))
    assert torch.equal(reply.weights["w"], released(trained, received, ON).weights["w"])


def test_a_private_upload_is_the_same_on_every_engine_and_its_epsilon_is_reported(
    tmp_path: Path,
) -> None:
    privacy = PrivacySettings(clip=0.5, noise=5.0)
    alone = trained(tmp_path / "alone", Measuring(), 1, privacy)
    for name, workers, how in (("pool", 2, connect), ("flower", 1, in_process(2))):
        other = trained(tmp_path / name, Measuring(), workers, privacy, how)
        assert bits(other)["weights"] == bits(alone)["weights"]
    assert all(row["outcome"] == "ok" for row in bits(alone)["clients"])
    summary = json.loads((tmp_path / "alone" / "summary.json").read_text())
    assert summary["epsilon"] == spent(privacy, 2 * summary["most_visits"])


# Accounting


def analytic_delta(scale: float, epsilon: float) -> float:
    """Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018,
    Theorem 8; `scale`: sensitivity over deviation."""
    return float(
        stats.norm.cdf(scale / 2 - epsilon / scale)
        - exp(epsilon) * stats.norm.cdf(-scale / 2 - epsilon / scale)
    )


def analytic_epsilon(scale: float, delta: float) -> float:
    return float(optimize.brentq(lambda e: analytic_delta(scale, e) - delta, 0, 600, xtol=1e-12))


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 50), st.integers(1, 40), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_epsilon_is_that_of_the_closed_form(noise: float, visits: int, delta: float) -> None:
    privacy = PrivacySettings(clip=3.0, noise=noise, delta=delta)
    scale = sqrt(4.0 * visits) / noise
    got = spent(privacy, visits)
    if analytic_delta(scale, 0.0) <= delta:
        assert got == 0.0
    elif got is None:
        assert analytic_delta(scale, 500.0) > delta
    else:
        assert got == pytest.approx(analytic_epsilon(scale, delta), rel=1e-6, abs=1e-6)


def test_known_values() -> None:
    """The closed form at a sensitivity of one: epsilon 1 and delta 1e-5 take 3.730632."""
    privacy = PrivacySettings(clip=1.0, noise=2 * 3.730632)
    assert spent(privacy, 1) == pytest.approx(1.0, abs=1e-5)
    assert spent(PrivacySettings(clip=1.0), 1) is None
    assert spent(PrivacySettings(clip=1.0, noise=0.01), 1) is None  # no promise at all


def test_composition_agrees_with_privacy_loss_distributions() -> None:
    """Convolved numerically by dp-accounting: another way, which errs on the high side."""
    distributions = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    one = distributions.from_gaussian_mechanism(
        5.0, sensitivity=2.0, value_discretization_interval=1e-3
    )
    for visits in (1, 4, 16):
        composed = one.self_compose(visits).get_epsilon_for_delta(1e-5)
        ours = spent(PrivacySettings(clip=1.0, noise=5.0), visits)
        assert ours is not None
        assert ours <= composed * (1 + 1e-9)
        assert ours == pytest.approx(composed, rel=0.01)


def test_more_answers_cost_more_and_more_noise_costs_less() -> None:
    privacy = PrivacySettings(clip=1.0, noise=4.0)
    by_visits = [spent(privacy, visits) or 0 for visits in range(6)]
    assert by_visits[0] == 0.0
    assert by_visits == sorted(set(by_visits))
    assert (spent(replace(privacy, noise=8.0), 3) or 0) < by_visits[3]


def test_a_schedule_counts_the_client_that_is_asked_most() -> None:
    plan = Schedule(clients=12, participation=0.25, seed=3, rounds=20)
    asked = np.zeros(12)
    for round in range(1, 21):
        asked[sample_cohort(12, 0.25, 3, round)] += 1
    assert plan.most_visits() == asked.max() < 20
    assert Schedule(5, 1.0, 0, 7).most_visits() == 7
    assert plan.rounds_within(plan.most_visits()) == 20
    shorter = replace(plan, rounds=plan.rounds_within(2))
    assert shorter.most_visits() <= 2 < replace(shorter, rounds=shorter.rounds + 1).most_visits()


@settings(max_examples=20, deadline=None)
@given(
    st.floats(0.3, 8),
    st.floats(0.2, 30),
    st.integers(1, 30),
    st.sampled_from([0.25, 1.0]),
)
def test_a_budget_is_kept_and_what_is_advised_fits(
    noise: float, epsilon: float, rounds: int, participation: float
) -> None:
    privacy = PrivacySettings(clip=1.0, noise=noise, epsilon=epsilon)
    plan = Schedule(8, participation, 0, rounds)
    reached = spent(privacy, plan.most_visits())
    if reached is not None and reached <= epsilon:
        check_budget(privacy, FEDAVG, plan)
        return
    with pytest.raises(ConfigError) as refusal:
        check_budget(privacy, FEDAVG, plan)
    said = str(refusal.value)
    assert "\n" not in said
    found = re.search(r"would (?:reach epsilon ([\d.]+)|have no guarantee) at", said)
    assert found is not None
    assert found[1] is None if reached is None else float(found[1]) == round(reached, 2)
    needed = re.search(r"privacy.noise = ([\d.e+]+) would do", said)
    assert needed is not None
    check_budget(replace(privacy, noise=float(needed[1])), FEDAVG, plan)
    with pytest.raises(ConfigError):  # it is the smallest, but for the rounding
        check_budget(replace(privacy, noise=float(needed[1]) * 0.985), FEDAVG, plan)
    fitting = re.search(r"at most (\d+) rounds fit", said)
    most = int(fitting[1]) if fitting else 0
    assert most or "not even one round fits" in said
    assert most < rounds
    if most:
        check_budget(privacy, FEDAVG, replace(plan, rounds=most))
    with pytest.raises(ConfigError):
        check_budget(privacy, FEDAVG, replace(plan, rounds=most + 1))


def test_without_dp_accounting_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    plan = Schedule(5, 1.0, 0, 2)
    check_budget(PrivacySettings(), FEDAVG, plan)
    check_budget(PrivacySettings(clip=1.0), FEDAVG, plan)
    with pytest.raises(ConfigError, match=r"pip install .*'dcfl\[privacy\]'"):
        check_budget(PrivacySettings(clip=1.0, noise=1.0), FEDAVG, plan)


def test_the_summary_says_what_was_spent() -> None:
    privacy = PrivacySettings(clip=1.0, noise=5.0, delta=1e-6)
    assert account(PrivacySettings(), FEDAVG, Schedule(4, 1.0, 0, 3)) == {}
    entry = account(privacy, FEDAVG, Schedule(4, 1.0, 0, 3))
    assert entry["epsilon"] == pytest.approx(analytic_epsilon(sqrt(12) / 5, 1e-6))
    assert (entry["delta"], entry["most_visits"], entry["secret_noise"]) == (1e-6, 3, False)
    secret = replace(privacy, secret=True)  # and two rounds were done again
    assert account(secret, FEDAVG, Schedule(4, 1.0, 0, 3), 2)["most_visits"] == 5
    assert account(privacy, FEDAVG, Schedule(4, 1.0, 0, 3), 2) == entry
    hopeless = account(replace(privacy, noise=0.001), FEDAVG, Schedule(4, 1.0, 0, 3))
    assert json.loads(json.dumps(hopeless))["epsilon"] is None


# Can anybody tell?


def test_noise_hides_which_of_two_data_sets_a_client_has() -> None:
    """The best guess there is, on the two furthest data sets, is right as often as theory says and
    no more; without noise it is always right."""
    start, towards = {"w": torch.zeros(16)}, torch.full((16,), 5.0)
    privacy = PrivacySettings(clip=1.0, noise=2.0)

    def evidence(sign: float, privacy: PrivacySettings, visit: int) -> float:
        reply = released({"w": sign * towards}, start, privacy, round=visit)
        return float(reply.weights["w"] @ towards)

    def advantage(privacy: PrivacySettings, trials: int) -> float:
        guessed = [evidence(1.0, privacy, visit) > 0 for visit in range(trials)]
        wrongly = [evidence(-1.0, privacy, trials + visit) > 0 for visit in range(trials)]
        return float(np.mean(guessed) - np.mean(wrongly))

    scale = 2.0 / privacy.noise
    bound = 2 * stats.norm.cdf(scale / 2) - 1
    assert advantage(privacy, 2000) == pytest.approx(bound, abs=5 * sqrt(0.5 / 2000))
    assert advantage(replace(privacy, noise=40.0), 2000) < 0.1
    assert advantage(replace(privacy, noise=0.0), 20) == 1.0


# Whole runs


def trained(
    folder: Path,
    method: Method,
    workers: int,
    privacy: PrivacySettings,
    connect: Connect = connect,
) -> Run:
    experiment = Experiment(
        method=method,
        training=TRAINING,
        federation=FederationSettings(rounds=3, participation=0.5),
        engine=EngineSettings(workers=workers, device="cpu"),
        privacy=privacy,
        output=OutputSettings(str(folder), report=False),
    )
    run = Run(experiment, federation(), MODEL, connect)
    for _ in run.rounds():
        pass
    return run


def test_off_costs_nothing_and_changes_nothing() -> None:
    dataset = federation()
    assert dataset.partition is not None
    for privacy, protected in ((PrivacySettings(), False), (ON, True)):
        experiment = Experiment(method=FEDAVG, privacy=privacy)
        made = client_runner(experiment, dataset, dataset.partition, MODEL)
        assert (made.protection is not None) == protected


@pytest.mark.parametrize("method", ["fedavg", "dcfl-sw", "fedscl", "moon"])
def test_seeded_noise_is_the_same_on_every_engine(tmp_path: Path, method: str) -> None:
    made = METHODS[method]()
    alone = bits(trained(tmp_path / "alone", made, 1, ON))
    assert bits(trained(tmp_path / "pool", made, 2, ON)) == alone
    flower = trained(tmp_path / "flower", made, 1, ON, in_process(2))
    assert bits(flower)["weights"] == alone["weights"]
    plain = bits(trained(tmp_path / "plain", made, 1, PrivacySettings()))
    assert plain["weights"] != alone["weights"]
    assert all(row["outcome"] == "ok" for row in alone["clients"])
    assert all(row["num_steps"] == 0 for row in alone["clients"])
    assert all(row["metrics"] == {} for row in alone["clients"])  # but for the time


def test_secret_noise_gives_another_run_each_time(tmp_path: Path) -> None:
    secret = replace(ON, secret=True)
    runs = [trained(tmp_path / str(workers), FEDAVG, workers, secret) for workers in (1, 2)]
    again = trained(tmp_path / "again", FEDAVG, 1, secret)
    assert len({bits(run)["weights"] for run in (*runs, again)}) == 3


def test_a_run_over_its_budget_leaves_no_trace(tmp_path: Path) -> None:
    greedy = replace(ON, noise=2.0, epsilon=3.0)
    with pytest.raises(ConfigError, match=r"3 rounds, .* would reach epsilon .* fit"):
        trained(tmp_path / "run", FEDAVG, 1, greedy)
    assert not (tmp_path / "run").exists()
    modest = trained(tmp_path / "run", FEDAVG, 1, replace(greedy, noise=12.0))
    assert privacy_spent(modest.experiment, 3)["epsilon"] < 3.0
    at_sites = replace(modest.experiment, engine=EngineSettings("flower"))
    assert privacy_spent(at_sites, 3)["secret_noise"]
    assert privacy_spent(Experiment(), 3) == {}


def test_a_model_with_running_statistics_is_refused(tmp_path: Path) -> None:
    folder = OutputSettings(str(tmp_path / "run"))
    experiment = Experiment(method=FEDAVG, privacy=ON, output=folder)
    with pytest.raises(ConfigError, match=r'model\.norm = "group"'):
        Run(experiment)


# The page

PAGE = (Path(__file__).parent.parent / "docs" / "privacy.md").read_text()


def indented(beginning: str) -> str:
    """The block of the page that begins so."""
    block = re.search(
        rf"(?:^    {re.escape(beginning)}.*\n)(?:^(?:    .*)?\n)*", PAGE, re.MULTILINE
    )
    assert block is not None
    return textwrap.dedent(block[0]).strip()


def test_the_table_of_the_page_is_what_the_code_says() -> None:
    rows = re.findall(r"^\| ([\d.]+)((?: \| [\d.none]+){3}) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for noise, cells in rows:
        privacy = PrivacySettings(clip=1.0, noise=float(noise))
        for written, visits in zip(cells.split(" | ")[1:], (1, 10, 30), strict=True):
            reached = spent(privacy, visits)
            said = "none" if reached is None else f"{reached:.3g}"
            assert said == written or float(said) == float(written)


def test_the_configs_of_the_page_can_be_used() -> None:
    everything = from_toml(indented("[privacy]"))
    assert everything.privacy == PrivacySettings(1.0, 4.0, 8.0, 1e-5, False)
    many = from_toml(indented("[model]"))
    check_covered(many.privacy, many.method, many.server.aggregation, LeNet(3, 32, 4))
    for clients in (200, 500):
        check_budget(many.privacy, many.method, schedule(with_clients(many, clients), 20))


def with_clients(experiment: Experiment, clients: int) -> Experiment:
    return replace(experiment, data=replace(experiment.data, clients=clients))


def test_the_refusal_on_the_page_is_the_one_that_is_given() -> None:
    privacy = PrivacySettings(clip=1.0, noise=1.0, epsilon=8.0)
    with pytest.raises(ConfigError) as refusal:
        check_budget(privacy, FEDAVG, schedule(Experiment(), 80))
    assert str(refusal.value) == " ".join(indented("privacy.epsilon = 8: 80").split())


def test_the_method_of_the_page_is_private(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(indented("from dataclasses"))
    (method,) = load_methods(tmp_path / "own.py").values()
    assert [verdict for verdict in check_method(method, "group") if not verdict.holds] == []
    privacy = PrivacySettings(clip=0.5, noise=5.0)
    private = bits(trained(tmp_path / "private", method(), 1, privacy))
    plain = bits(trained(tmp_path / "plain", method(), 1, PrivacySettings()))
    assert private["weights"] != plain["weights"]
    assert all(row["outcome"] == "ok" for row in private["clients"])
    assert account(privacy, method(), Schedule(4, 1.0, 0, 3))["epsilon"] == spent(privacy, 6)


@pytest.mark.parametrize("sent", [1e-318, 0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_server_does_not_choose_the_clip_of_a_client_that_adds_noise(sent: float) -> None:
    """With a clip near the least numbers of float64 the noise was zero."""
    weights = {"w": torch.zeros(4096, dtype=torch.float64)}
    change = torch.randn(4096, dtype=torch.float64)
    own = at_site(PrivacySettings(clip=1.0, noise=0.5))
    protection = Protection(own, FEDAVG, frozenset(weights), {}, 0)
    told = Broadcast(1, weights, {CLIP: torch.tensor(sent, dtype=torch.float64)})
    reply = protection.protect(ClientUpdate(0, {"w": change}, {}, 1, 1, {}), told).weights["w"]
    assert reply.std() == pytest.approx(0.5, rel=0.1)
    assert abs(torch.corrcoef(torch.stack([reply, change]))[0, 1]) < 0.1


def test_a_budget_that_no_noise_keeps_is_one_line() -> None:
    plan = Schedule(10, 0.5, 0, 10)
    for epsilon, delta in ((1e-300, 1e-12), (1e-9, 1e-12)):
        with pytest.raises(ConfigError, match=r"not even one round fits; no noise would do$"):
            check_budget(PrivacySettings(1.0, 4.0, epsilon, delta), FEDAVG, plan)
    assert [one.noise for one in noise_needed(1e-300, 1e-12, plan, 9)] == [float("inf")] * 5
