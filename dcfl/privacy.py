"""What a client does to its reply before it leaves, and what that is worth: the [privacy] table.

The operator of the server reads single replies, so each client protects its own: its change of the
parameters is clipped to an L2 norm and Gaussian noise is added. Nothing else that depends on the
data leaves. The unit of privacy is a client's whole training set: replace all of it by any other,
and the replies of a whole run are (epsilon, delta)-indistinguishable. docs/privacy.md says what
that does and does not protect.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil, floor, inf, log10, pi, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dcfl.errors import ConfigError, require
from dcfl.federation import sample_cohort
from dcfl.messages import Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import Method

LARGEST = 1e6  # of clips and noise: a product of two still passes the server's own checks
LARGEST_EPSILON = 500.0  # beyond it a guarantee says nothing
BY_SIZE = ("samples", "fednova")  # aggregations that ask how many images or steps a client has


@dataclass(frozen=True)
class PrivacySettings:
    """The [privacy] table; off unless `clip` is set."""

    clip: float = 0.0  # the longest change of all parameters together, in L2; 0: off
    noise: float = 0.0  # standard deviation, as a multiple of the clip; 0: no guarantee
    epsilon: float = 0.0  # what the whole run may spend per client; 0: no limit
    delta: float = 1e-5  # far below one over the number of clients
    # Noise that nobody can draw again; else it follows from federation.seed, which the operator
    # knows: for simulations. SuperNodes always draw it in secret.
    secret: bool = False

    def __post_init__(self) -> None:
        for name in ("clip", "noise"):
            value = getattr(self, name)
            require(
                0 <= value <= LARGEST,
                f"privacy.{name} must lie in 0 (off) to {LARGEST:,.0f}, not {value:g}",
            )
        require(
            0 <= self.epsilon <= LARGEST_EPSILON,
            f"privacy.epsilon must lie in 0 (no limit) to {LARGEST_EPSILON:g}, "
            f"not {self.epsilon:g}",
        )
        require(
            1e-12 <= self.delta < 1, f"privacy.delta must lie in 1e-12 to 1, not {self.delta:g}"
        )
        require(
            self.active or not self.noise,
            "privacy.noise without privacy.clip: set privacy.clip, the longest change of "
            "the parameters that a client sends",
        )
        require(
            self.noise > 0 or not self.epsilon,
            "privacy.epsilon without privacy.noise: no budget is kept without noise",
        )

    @property
    def active(self) -> bool:
        return self.clip > 0


def at_site(settings: PrivacySettings, least_noise: float = 0.0) -> PrivacySettings:
    """What a real site makes of the settings that a run brings: its noise is secret, and it may ask
    for more noise than the operator thought of."""
    require(
        settings.noise >= least_noise,
        f"privacy.noise = {settings.noise:g}: this site sends nothing with less than "
        f"{least_noise:g}",
    )
    return replace(settings, secret=True)


# The reply


def protected(
    update: ClientUpdate,
    broadcast: Broadcast,
    trainable: Collection[str],
    settings: PrivacySettings,
    seed: int,
) -> ClientUpdate:
    """The reply as it may leave the client.

    Buffers go back as they came. Uploads, numbers of images and steps and the loss depend on the
    data and do not leave; nor does the time it took, unless the noise is a simulation's.
    """
    key = None if settings.secret else f"{seed}/{broadcast.round}/{update.client}/privacy"
    draws = Draws(key)
    weights = _protected_weights(update.weights, broadcast.weights, trainable, settings, draws)
    seconds = 0.0 if settings.secret else update.metrics.get("seconds", 0.0)  # a pool plans by it
    return replace(
        update,
        weights=weights,
        upload={},
        num_examples=1,
        num_steps=0,
        metrics={"seconds": seconds},
    )


def _protected_weights(
    trained: Tensors,
    received: Tensors,
    trainable: Collection[str],
    settings: PrivacySettings,
    draws: Draws,
) -> dict[str, Tensor]:
    """Received + clipped change + noise, in float64 until the last moment: rounding to the dtype of
    the weights comes after the noise, and blurs what its last bits could tell."""
    before = {name: received[name].to(trained[name].device) for name in trained}
    moving = [name for name in trained if name in trainable]
    share = clip_share((trained[n].double() - before[n].double() for n in moving), settings.clip)
    deviation = settings.noise * settings.clip
    for name in moving:
        sent, start = torch.empty_like(trained[name]), before[name].double()
        change = (trained[name].double() - start).mul_(share)
        if deviation:
            change.add_(draws.normal(change), alpha=deviation)
        before[name] = sent.copy_(change.add_(start))
    return before


def clip_share(tensors: Iterable[Tensor], longest: float) -> float:
    """What to multiply the tensors with so that all of them together are no longer than that."""
    norm = sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
    return 1.0 if norm <= longest else longest / norm


class Draws:
    """Standard normal numbers in float64, of a cryptographic generator: from the operating system,
    or from a key, for who wants the same ones again.

    torch's generators would not do. They take 32 bits of their seed, which can be tried one by one;
    and where the noise is larger than the signal, as it must be, replies show a generator's output
    almost bare, and the state of a Mersenne twister can be read off it.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key, self._calls = key, 0

    def normal(self, like: Tensor) -> Tensor:
        """In the shape and on the device of `like`."""
        pairs = (like.numel() + 1) // 2
        raw = np.frombuffer(self._bytes(16 * pairs), dtype="<u8").reshape(2, pairs)
        # 53 bits each, never zero: no radius beyond 8.6, which is left out with 1e-16.
        radii, angles = ((raw >> np.uint64(11)) + 0.5) * 2.0**-53
        np.log(radii, out=radii)
        np.sqrt(np.multiply(radii, -2, out=radii), out=radii)
        angles *= 2 * pi
        both = np.concatenate([radii * np.cos(angles), radii * np.sin(angles)])
        return torch.from_numpy(both[: like.numel()]).reshape(like.shape).to(like.device)

    def _bytes(self, count: int) -> bytes:
        if self._key is None:
            return os.urandom(count)
        self._calls += 1
        return hashlib.shake_256(f"{self._key}/{self._calls}".encode()).digest(count)


# What is covered


def check_covered(
    settings: PrivacySettings, method: Method, aggregation: str, model: nn.Module
) -> None:
    """Refuse what would let something out that is not protected, or could not work."""
    if not settings.active:
        return
    if type(method).upload is not Method.upload:
        raise ConfigError(
            f"[privacy] covers weights alone, not what {method.name} sends beside them (noise that "
            f"protects a client leaves nothing of prototypes or variates): choose a method.name "
            f"that sends nothing else, such as fedavg or dcfl-sw"
        )
    if aggregation in BY_SIZE:
        raise ConfigError(
            f'server.aggregation = "{aggregation}" weighs clients by how much data they have, '
            f'which [privacy] keeps from the server: use "uniform"'
        )
    if any(getattr(layer, "track_running_stats", False) for layer in model.modules()):
        raise ConfigError(
            "[privacy] does not cover running statistics of clients' images: "
            'set model.norm = "group" or "batch-nostats"'
        )
    if len([*model.named_parameters(remove_duplicate=False)]) != len([*model.parameters()]):
        raise ConfigError("[privacy] cannot be used with a model whose layers share parameters")


# What it is worth


@dataclass(frozen=True)
class Schedule:
    """Who is asked when: public, and known before the first round."""

    clients: int
    participation: float
    seed: int
    rounds: int

    def visits(self) -> Iterator[int]:
        """After each round: how often the client that was asked most has been asked."""
        asked = np.zeros(self.clients, dtype=np.int64)
        for round in range(1, self.rounds + 1):
            asked[sample_cohort(self.clients, self.participation, self.seed, round)] += 1
            yield int(asked.max())

    def most_visits(self) -> int:
        return max(self.visits(), default=0)

    def rounds_within(self, visits: int) -> int:
        """How many rounds ask nobody more often than that."""
        return sum(most <= visits for most in self.visits())


def spent(settings: PrivacySettings, visits: int) -> float | None:
    """Epsilon at `settings.delta`, against who reads every single reply and knows who was asked, of
    a client that has answered so many times; None: no guarantee.

    No amplification by sampling is claimed: the operator knows the schedule.
    """
    if not settings.noise:
        return None
    delta_at = _deltas(_scale(settings, visits))
    if delta_at(LARGEST_EPSILON) > settings.delta:
        return None
    return _boundary(lambda epsilon: delta_at(epsilon) <= settings.delta, LARGEST_EPSILON, 0.0)


def check_budget(settings: PrivacySettings, schedule: Schedule) -> None:
    """Refuse a run whose whole schedule would spend more than `settings.epsilon`."""
    if not settings.noise:
        return
    visits = schedule.most_visits()
    reached = spent(settings, visits)
    if not settings.epsilon or (reached is not None and reached <= settings.epsilon):
        return
    allowed = _boundary(lambda scale: _deltas(scale)(settings.epsilon) <= settings.delta, 0.0, 1e3)
    answers = floor((allowed / _scale(settings, 1)) ** 2)
    rounds = schedule.rounds_within(answers)
    fitting = f"at most {rounds} rounds fit" if rounds else "not even one round fits"
    noise = _rounded_up(_scale(settings, visits) * settings.noise / allowed)
    raise ConfigError(
        f"privacy.epsilon = {settings.epsilon:g}: {schedule.rounds} rounds, for which some client "
        f"answers {visits} times, would reach "
        f"{f'epsilon {reached:.2f}' if reached is not None else f'more than {LARGEST_EPSILON:g}'} "
        f"at delta {settings.delta:g}; {fitting}; privacy.noise = {noise:g} would do"
    )


def account(settings: PrivacySettings, schedule: Schedule, again: int = 0) -> dict[str, Any]:
    """For the run's summary; nothing if [privacy] is off.

    `again`: rounds that a resumed run had to do a second time. Seeded noise gives the same replies
    again, which tells nothing new; secret noise gives others, which count.
    """
    if not settings.active:
        return {}
    visits = schedule.most_visits() + (again if settings.secret else 0)
    return {
        "epsilon": spent(settings, visits),
        "delta": settings.delta,
        "most_visits": visits,
        "secret_noise": settings.secret,
    }


def _scale(settings: PrivacySettings, visits: int) -> float:
    """How far apart the replies to two data sets can lie, in standard deviations of the noise.

    Two changes may point in opposite directions: twice the clip. Gaussian mechanisms, however each
    depends on the results of those before, compose to one whose squared distance is the sum of
    theirs.
    """
    return sqrt(4.0 * visits) / settings.noise


def _deltas(scale: float) -> Callable[[float], float]:
    """Delta by epsilon of a Gaussian mechanism, from dp-accounting."""
    if scale == 0:
        return lambda epsilon: 0.0
    for place in ("dp_accounting.pld", "dp_accounting"):  # in versions from 0.1, and before
        try:
            mechanisms = importlib.import_module(f"{place}.privacy_loss_mechanism")
        except ModuleNotFoundError:
            continue
        loss = mechanisms.GaussianPrivacyLoss(1 / scale)
        return lambda epsilon: float(loss.get_delta_for_epsilon(epsilon))
    raise ConfigError(
        "privacy.noise: dp-accounting works out what it is worth: pip install 'dcfl[privacy]'"
    )


def _boundary(fits: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last number that fits on the way from one that does to one that may not."""
    if fits(outside):
        return outside
    for _ in range(45):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def _rounded_up(value: float) -> float:
    """To three digits."""
    if not 0 < value < inf:
        return value
    unit = 10.0 ** (floor(log10(value)) - 2)
    return ceil(value / unit) * unit
