"""Packed messages: each operator against its definition, and what a server makes of bad ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dcfl.config import load_experiment
from dcfl.engines.runner import client_runner
from dcfl.errors import ConfigError, ProtocolError
from dcfl.experiment import Experiment
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods import METHODS
from dcfl.models.parts import personal_and_rest, with_personal
from dcfl.privacy import PrivacySettings
from dcfl.seeding import derived_seed, generator_for
from dcfl.server import Server, ServerState
from dcfl.server.compression import (
    BLOCK,
    PLACES,
    RESIDUAL,
    SCALES,
    VALUES,
    Compression,
    CompressionSettings,
    compression_for,
)
from dcfl.tensors import sha256, snapshot
from tests import toys
from tests.engines.runs import Flat

SEED, COUNT = 5, 20 * 27 + 20 + 3 * 20 + 3 + 2 * 20
UPS = ("float16", "bfloat16", "int8", "top-k", "random-k")


@cache
def network() -> nn.Module:
    """Kernels, vectors, buffers of floats and of counts."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.Flatten(), nn.Linear(20, 3))
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def compression(**settings: Any) -> Compression:
    return compression_for(CompressionSettings(**settings), network(), SEED)


def start(round: int = 1) -> Broadcast:
    return Broadcast(round, snapshot(network()), {})


def reply(change: float = 0.01, client: int = 0, seed: int = 0) -> ClientUpdate:
    """All parameters have moved, and so has a counter."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: before + change * torch.randn(before.shape, generator=generator)
        if before.is_floating_point() and "running" not in name
        else before + 1
        for name, before in start().weights.items()
    }
    return ClientUpdate(client, weights, {}, 8, LocalTraining().steps_on(8), {})


def moved(update: ClientUpdate, since: Broadcast | None = None) -> np.ndarray[Any, Any]:
    """The change of all parameters, in the order of the model."""
    before = (since or start()).weights
    names = [name for name, _ in network().named_parameters()]
    changes = [(update.weights[n] - before[n]).reshape(-1) for n in names]
    return torch.cat(changes).numpy()


def sent(
    pack: Compression, update: ClientUpdate, round: int = 1, residual: Tensors | None = None
) -> tuple[ClientUpdate, Tensors]:
    return pack.packed_update(update, start(round), residual or {})


def loop_of(kind: str, change: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What arrives, by the definition, a number at a time."""
    if kind == "float16":
        return change.astype(np.float16).astype(np.float32)
    if kind == "bfloat16":  # the upper half of the bits, to the nearest, ties to even
        bits = change.view(np.uint32)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        return kept.astype(np.uint32).view(np.float32)
    arrived = np.zeros_like(change)
    if kind == "int8":
        rows = -(-len(change) // BLOCK)
        drawn = torch.rand(rows, BLOCK, generator=generator_for(SEED, 1, 0, "compression"))
        uniform = drawn.reshape(-1).numpy()
        for i, x in enumerate(change):
            block = change[i // BLOCK * BLOCK : (i // BLOCK + 1) * BLOCK]
            scale = np.abs(block).max() / np.float32(127)
            below = np.floor(x / scale)
            arrived[i] = scale * (below + (uniform[i] >= 1 - (x / scale - below)))
        return arrived
    chosen = round(0.1 * len(change))
    places = np.argsort(-np.abs(change))[:chosen]
    if kind == "random-k":
        rng = np.random.default_rng(derived_seed(SEED, 1, 0, "compression"))
        places = rng.choice(len(change), chosen, replace=False, shuffle=False)
    arrived[places] = change[places]
    return arrived


@pytest.mark.parametrize("kind", UPS)
def test_what_arrives_is_what_the_definition_says(kind: str) -> None:
    pack, update = compression(up=kind, share=0.1), reply()
    change = moved(update)
    packed, _ = sent(pack, update)
    arrived = pack.received_update(packed, start())
    wrong = moved(arrived) - loop_of(kind, change)
    assert np.abs(wrong).max() < 1e-7  # the sum with the weights is rounded
    assert arrived.weights.keys() == update.weights.keys()
    for name, tensor in arrived.weights.items():
        assert (tensor.dtype, tensor.stride()) == (
            update.weights[name].dtype,
            start().weights[name].stride(),
        )
    buffers = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert all(torch.equal(arrived.weights[b], update.weights[b]) for b in buffers)


BUFFERS = 2 * 20 * 4 + 8
BYTES = {
    "none": 4 * COUNT,
    "float16": 2 * COUNT,
    "bfloat16": 2 * COUNT,
    "int8": COUNT + 4 * -(-COUNT // BLOCK),
    "top-k": 8 * round(0.1 * COUNT),
    "random-k": 4 * round(0.1 * COUNT),
}


@pytest.mark.parametrize("kind", BYTES)
def test_the_bytes_of_a_message_are_counted_by_hand(kind: str) -> None:
    pack = compression(up=kind, share=0.1)
    assert sent(pack, reply())[0].num_bytes == BYTES[kind] + BUFFERS
    if kind not in ("top-k", "random-k"):
        assert compression(down=kind).packed(start()).num_bytes == BYTES[kind] + BUFFERS


def test_int8_is_unbiased_and_never_more_than_a_step_away() -> None:
    pack, update, rounds = compression(up="int8"), reply(), 500
    change = torch.from_numpy(moved(update))
    total, farthest = torch.zeros(COUNT, dtype=torch.float64), torch.zeros(COUNT)
    for round in range(1, rounds + 1):
        packed = sent(pack, update, round)[0].weights
        scales = packed[SCALES].repeat_interleave(BLOCK)[:COUNT]
        steps = packed[VALUES].float() - change / scales
        total += steps
        farthest = torch.maximum(farthest, steps.abs())
    # A number rounded at random deviates by half a step at most. The largest of these sums is less
    # than 3 of their deviations from 0; rounded to the nearest, it would be 22.
    assert float(total.abs().max()) < 4 * 0.5 * rounds**0.5
    assert 0.9 < float(farthest.max()) < 1.0001


def test_draws_differ_between_clients_and_rounds_and_repeat() -> None:
    def packed(kind: str, client: int, round: int) -> str:
        update = reply(client=client)
        return sha256(sent(compression(up=kind), update, round)[0].weights)

    for kind in ("int8", "random-k"):
        seen = {packed(kind, client, round) for client in (0, 1) for round in (1, 2)}
        assert len(seen) == 4
        assert packed(kind, 0, 1) == packed(kind, 0, 1)


@pytest.mark.parametrize("kind", ["top-k", "random-k"])
def test_all_that_was_sent_and_the_residual_are_the_sum_of_the_changes(kind: str) -> None:
    """In whole numbers, which float32 adds exactly."""
    pack, residual = compression(up=kind, share=0.07), {}
    true, arrived = np.zeros(COUNT), np.zeros(COUNT)
    zero = {name: torch.zeros_like(one) for name, one in start().weights.items()}
    for round in range(1, 30):
        whole = {n: (t * 1000).round() for n, t in reply(seed=round).weights.items()}
        update = replace(reply(), weights=whole)
        here = Broadcast(round, zero, {})
        true += moved(update, here)
        packed, residual = pack.packed_update(update, here, residual)
        got = moved(pack.received_update(packed, here), here)
        assert np.count_nonzero(got) <= round_share(0.07)
        arrived += got
    assert np.array_equal(arrived + residual[RESIDUAL].numpy(), true)
    assert 0 < np.abs(residual[RESIDUAL].numpy()).max() < np.abs(true).max()


def round_share(share: float) -> int:
    return round(share * COUNT)


def test_halves_stay_finite() -> None:
    """float16 ends at 65,504."""
    pack, update = compression(up="float16"), reply(change=1e6)
    arrived = moved(pack.received_update(sent(pack, update)[0], start()))
    assert np.abs(arrived).max() == pytest.approx(65504, rel=1e-4)


@pytest.mark.parametrize("down", ["float16", "bfloat16", "int8"])
def test_the_server_measures_changes_from_what_clients_have_received(down: str) -> None:
    """A client that sends back what it got does not move the server's own, exact weights."""
    pack = compression(down=down)
    server, state = server_with(pack), ServerState(0, start().weights, {}, {})
    broadcast = server.broadcast(state)
    received = pack.received(broadcast)
    assert 0 < np.abs(moved(replace(reply(), weights=received.weights))).max() < 0.01
    still = replace(reply(), weights=received.weights)
    after, reports = server.aggregate(state, broadcast, [still])
    assert sha256(after.weights) == sha256(state.weights)
    assert reports[0].bytes_down == broadcast.num_bytes < start().num_bytes


# What others send ---------------------------------------------------------------------------------


def server_with(pack: Compression) -> Server:
    names = frozenset(name for name, _ in network().named_parameters())
    return Server(METHODS["fedavg"](), 10, names, LocalTraining(), compression=pack)


def places(*first: int) -> Callable[[dict[str, Tensor]], object]:
    """Wrong numbers at the beginning."""

    def forge(weights: dict[str, Tensor]) -> None:
        weights[PLACES][: len(first)] = torch.tensor(first, dtype=torch.int32)

    return forge


def at_the_end(weights: dict[str, Tensor]) -> None:
    weights[PLACES][-1] = COUNT


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda weights: weights.update({name: tensor})


CHOSEN = round(0.1 * COUNT)
HOSTILE: list[tuple[str, Callable[[dict[str, Tensor]], object], str]] = [
    ("top-k", places(-1), "not ascending numbers from 0 to"),
    ("top-k", places(-(2**31)), "not ascending"),
    ("top-k", places(2, 2), "not ascending"),
    ("top-k", places(9, 3), "not ascending"),
    ("top-k", at_the_end, "not ascending"),
    ("top-k", lambda w: w.pop(PLACES), f"missing or unknown names: {PLACES}"),
    ("top-k", put(PLACES, torch.arange(CHOSEN)), "not torch.int32"),
    ("top-k", put(PLACES, torch.arange(COUNT, dtype=torch.int32)), "not torch.int32"),
    ("top-k", put(VALUES, torch.full((CHOSEN,), torch.nan)), "is not finite"),
    ("random-k", put(VALUES, torch.full((CHOSEN,), torch.inf)), "is not finite"),
    ("random-k", put(VALUES, torch.zeros(COUNT)), "not torch.float32"),
    ("random-k", put(PLACES, torch.arange(CHOSEN, dtype=torch.int32)), "unknown names"),
    ("float16", put(VALUES, torch.full((COUNT,), torch.inf).half()), "is not finite"),
    ("bfloat16", put(VALUES, torch.full((COUNT,), 1e30).bfloat16()), "is too large"),
    ("float16", put(VALUES, torch.zeros(COUNT)), "not torch.float16"),
    ("int8", put(SCALES, torch.full((-(-COUNT // BLOCK),), torch.nan)), "is not finite"),
    ("int8", put(SCALES, torch.zeros(1)), "not torch.float32"),
    ("int8", put("0.weight", torch.zeros(20, 3, 3, 3)), "0.weight is packed and comes unpacked"),
    ("int8", put("hidden", torch.zeros(1)), "unknown names: hidden"),
    ("int8", lambda w: w.pop("1.running_var"), "unknown names: 1.running_var"),
]


@pytest.mark.parametrize(("kind", "forge", "reason"), HOSTILE)
def test_a_reply_that_cannot_be_unpacked_is_rejected(
    kind: str, forge: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    pack = compression(up=kind, share=0.1)
    server, state = server_with(pack), ServerState(0, start().weights, {}, {})
    honest = sent(pack, reply(client=1))[0]
    weights = {name: one.clone() for name, one in sent(pack, reply())[0].weights.items()}
    forge(weights)
    forged = replace(reply(), weights=weights)
    after, reports = server.aggregate(state, start(), [forged, honest])
    assert [report.outcome for report in reports] == ["rejected", "ok"]
    assert reason in reports[0].reason
    assert reports[0].bytes_up == forged.num_bytes
    alone, _ = server.aggregate(state, start(), [honest])
    assert sha256(after.weights) == sha256(alone.weights)


def test_a_client_refuses_a_broadcast_that_it_cannot_unpack() -> None:
    pack = compression(down="int8")
    with pytest.raises(ProtocolError, match="missing or unknown names"):
        pack.received(start())


# With the rest ------------------------------------------------------------------------------------


def test_noise_comes_first_and_the_rest_is_made_of_the_protected_reply() -> None:
    """So packing, and what a client remembers of it, is post-processing."""
    privacy = PrivacySettings(clip=0.1, noise=0.5)
    dataset = toys.dataset()
    partition = toys.federated().partition
    settings: dict[str, Any] = {"method": METHODS["fedavg"](), "privacy": privacy}
    packs = CompressionSettings("top-k", share=0.1)
    plain = client_runner(Experiment(**settings), dataset, partition, Flat())
    packed = client_runner(Experiment(**settings, compression=packs), dataset, partition, Flat())
    begin = Broadcast(1, snapshot(plain.model), {})
    protected, _ = plain.train(begin, 0, {})
    got, memory = packed.train(begin, 0, {})
    assert isinstance(protected, ClientUpdate)
    assert isinstance(got, ClientUpdate)
    wanted, residual = packed.compression.packed_update(protected, begin, {})
    assert sha256(got.weights) == sha256(wanted.weights)
    assert sha256(memory) == sha256(residual)


def test_a_client_remembers_a_personal_part_its_method_and_the_residual_apart() -> None:
    memory = {**with_personal({"a": torch.ones(1)}, {"b": torch.ones(2)}), RESIDUAL: torch.ones(3)}
    own, remembered = personal_and_rest(memory)
    assert ([*own], [*remembered]) == (["a"], ["b"])


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_a_median_of_numbers_that_few_have_sent_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=f"top-k.*{rule}.*medians are 0"):
        load_experiment(compression={"up": "top-k"}, server={"aggregation": rule})
    load_experiment(compression={"up": "int8"}, server={"aggregation": rule})


@pytest.mark.parametrize("share", [0, 1.5])
def test_a_share_is_one(share: float) -> None:
    with pytest.raises(ConfigError, match=r"compression\.share must lie in \(0, 1\]"):
        CompressionSettings(share=share)
