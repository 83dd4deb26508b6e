"""How a client protects its reply before it leaves, and what that is worth: the [privacy] table.

Where the operator of the server reads single replies, each client protects its own: the change of
its parameters is clipped to an L2 norm and Gaussian noise is added, and likewise to the upload of a
method that says how to bound it. Where only sums are used, the noise is in these instead
(`central_noise.py`): a server that is trusted adds it, or each client a share. Nothing else that
depends on the data leaves. The unit of privacy is a client's whole training set: replace all of it,
and the replies of the whole run are (epsilon, delta)-indistinguishable. docs/privacy.md says what
that does and does not protect.
"""

from __future__ import annotations

import hashlib
import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from functools import cache
from itertools import accumulate
from math import ceil, floor, inf, log10, sqrt
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcfl.amplification import GRAIN, Drawn, dp_accounting, least_noise
from dcfl.errors import ConfigError, ProtocolError
from dcfl.federation import FIXED, Sampling, sample_cohort
from dcfl.messages import PRIVATE, Broadcast, ClientUpdate, Tensors, private_and_rest
from dcfl.methods.method import Method
from dcfl.models.parts import sent_modules
from dcfl.server import ServerSettings
from dcfl.server.validation import check_like
from dcfl.settings import Settings, key
from dcfl.system.transfers import on_device
from dcfl.tensors import cast_like, clip_share

# Of clip, noise or sensitivity: the product of two still passes the server's checks, or is far from
# the least numbers of float64.
LARGEST_SETTING, LEAST_LENGTH, LEAST_NOISE = 10**6, 1e-6, 1e-3
LEAST_ACCOUNTED = (
    0.5  # noise below which there is no guarantee: the tails that it needs are not drawn
)
LARGEST_EPSILON = 500.0  # beyond it a guarantee says nothing
CLIP = f"{PRIVATE}clip"  # of the next round, where it follows a quantile
WITHIN = "within_clip"  # a client's metric: whether its change was as short as that
COUNT_NOISE = (
    4.0  # on the number of those, as a multiple of all noise: it takes a 16th of the budget
)
BY_SIZE = ("samples", "fednova")  # aggregations that ask how many images or steps a client has


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """The [privacy] table; off unless `clip` is set."""

    table_name: ClassVar = "privacy"

    # The longest change of all parameters together, in L2; 0: off.
    clip: float = key(0.0, ge=0, le=LARGEST_SETTING, zero="off")
    # Standard deviation, as a multiple of the clip; 0: no guarantee.
    noise: float = key(0.0, ge=0, le=LARGEST_SETTING, zero="off")
    # What the whole run may spend per client; 0: no limit.
    epsilon: float = key(0.0, ge=0, le=LARGEST_EPSILON, zero="no limit")
    delta: float = key(1e-5, ge=1e-12, lt=1)  # far below one over the number of clients
    # True: noise that nobody can reproduce, as at SuperNodes always. False, for simulations: it
    # follows from federation.seed, which the operator knows.
    secret: bool = False
    # Who adds the noise. "client": each, to its own reply, before anybody reads it. "server": once
    # a round, to the sum of all replies, which the server reads. "sum": each client a share, so
    # that the sum has it all; with server.secure, which shows the server nothing else.
    where: Literal["client", "server", "sum"] = "client"
    # Share of a round's clients that may tell the server what noise they added. Every client knows
    # its own: at least one is reckoned with. With where = "sum".
    colluding: float = key(0.0, ge=0, lt=1)
    # Share of the clients whose changes the clip shall not shorten: it follows them from round to
    # round, beginning at privacy.clip; 0: it stays. With where = "server".
    quantile: float = key(0.0, ge=0, lt=1, zero="the clip stays")
    # Whether the server's noise of a round takes back part of that of the rounds before it, so that
    # less of it adds up in the model. With federation.sampling = "in-turn".
    correlated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("clip", LEAST_LENGTH), ("noise", LEAST_NOISE)):
            if 0 < getattr(self, name) < least:
                raise ConfigError(f"privacy.{name} must be 0 (off) or at least {least:g}")
        if self.noise and not self.active:
            raise ConfigError(
                "privacy.noise without privacy.clip: set privacy.clip, the longest change of "
                "the parameters that a client sends"
            )
        if self.epsilon and not self.noise:
            raise ConfigError(
                "privacy.epsilon without privacy.noise: no budget is kept without noise"
            )
        if self.where != "client" and not self.active:
            raise ConfigError(
                f'privacy.where = "{self.where}" without privacy.clip: nothing is protected'
            )
        if self.shared and not self.noise:
            raise ConfigError(
                'privacy.where = "sum" without privacy.noise: there is none to share; set '
                "privacy.noise or leave out privacy.where"
            )
        if self.colluding and not self.shared:
            raise ConfigError('privacy.colluding: only with privacy.where = "sum"')
        if self.quantile and not self.central:
            raise ConfigError('privacy.quantile: only with privacy.where = "server"')
        if self.correlated and (self.quantile or not (self.central and self.noise)):
            raise ConfigError(
                "privacy.correlated needs noise at the server that stays the same: set "
                'privacy.where = "server" and privacy.noise, and no privacy.quantile'
            )

    @property
    def active(self) -> bool:
        return self.clip > 0

    @property
    def central(self) -> bool:
        return self.where == "server"

    @property
    def shared(self) -> bool:
        """Whether each client adds a share of the noise."""
        return self.where == "sum"

    @property
    def at_client(self) -> float:
        """The noise in what leaves a client, but for a share of the sum's."""
        return self.noise if self.where == "client" else 0.0

    @property
    def grain(self) -> int:
        """How many steps of the noise make one of what is added up."""
        return GRAIN if self.correlated else 1

    @property
    def on_sums(self) -> float:
        """The noise on the server's sums, which makes up for what the count of short changes tells
        (Andrew and others 2021)."""
        return self.noise / sqrt(1 - COUNT_NOISE**-2) if self.quantile else self.noise


def at_site(settings: PrivacySettings) -> PrivacySettings:
    """A run's settings as a real site applies them: the noise is secret."""
    return replace(settings, secret=True)


# The reply


@dataclass(frozen=True)
class Protection:
    """Protects every reply of a run before it leaves its client."""

    settings: PrivacySettings
    method: Method
    trainable: frozenset[str]  # names of the parameters; all other weights are buffers
    upload: Tensors  # an example of the method's upload: its names, shapes and dtypes
    seed: int

    def protect(self, update: ClientUpdate, broadcast: Broadcast) -> ClientUpdate:
        """The reply as it may leave the client.

        Buffers go back as they came. The numbers of images and steps and the loss depend on the
        data and stay with the client; so does the time it took, unless the noise is seeded.
        """
        told = private_and_rest(broadcast.shared)[0] if self.settings.quantile else {}
        clip = float(told[CLIP]) if CLIP in told else self.settings.clip
        secret = self.settings.secret
        key = None if secret else f"{self.seed}/{broadcast.round}/{update.client}/privacy"
        draws = Draws(key)
        weights, short = self._protected_weights(update.weights, broadcast.weights, clip, draws)
        return replace(
            update,
            weights=weights,
            upload=self._protected_upload(update.upload, draws),
            num_examples=1,
            num_steps=0,
            # A pool of workers plans by the seconds.
            metrics={
                "seconds": 0.0 if secret else update.metrics.get("seconds", 0.0),
                **({WITHIN: float(short)} if self.settings.quantile else {}),
            },
        )

    def _protected_weights(
        self, trained: Tensors, received: Tensors, clip: float, draws: Draws
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Received + (clipped change + noise). Whoever reads this could have added `received`,
        and rounded the sum, without us: only what is in brackets has to be private. And whether
        the change was within the clip."""
        noise = self.settings.at_client
        weights = {name: received[name] for name in trained}
        moving = [name for name in trained if name in self.trainable]
        share = clip_share((trained[n].double() - weights[n].double() for n in moving), clip)
        step = grid_step(2 * clip, noise, sum(trained[name].numel() for name in moving))
        for name in moving:
            start = weights[name].double()
            change = noised((trained[name].double() - start).mul_(share), step, draws)
            weights[name] = torch.empty_like(trained[name]).copy_(change.add_(start))
        return weights, share == 1

    def _protected_upload(self, upload: Tensors, draws: Draws) -> dict[str, Tensor]:
        """Clipped by the method, plus noise. Each of n tensors gets noise of deviation
        z * sqrt(n) * sensitivity / 2, so that two uploads are at most 2 / z deviations apart as a
        whole, exactly as two changes of the weights are."""
        self._require_like(upload, self.upload)
        exact = {name: tensor.to(torch.float64, copy=True) for name, tensor in upload.items()}
        clipped = self.method.clip_upload(exact)
        self._require_like(clipped, exact)
        sensitivity, sent = self.method.upload_sensitivity() or {}, in_floats(upload)
        if self.settings.where != "client":
            return cast_like(bounded(clipped, self.method), sent)
        noise = self.settings.noise * sqrt(len(clipped))
        protected = {}
        for name in self.upload:  # not in the order of the client's upload: it, too, could tell
            step = grid_step(sensitivity[name], noise, clipped[name].numel())
            protected[name] = noised(clipped[name], step, draws)
        return cast_like(protected, sent)

    def _require_like(self, tensors: Tensors, example: Tensors) -> None:
        """Names and shapes that depend on the data would reveal something that no noise hides."""
        try:
            check_like(tensors, example, "upload")
        except ProtocolError as error:
            raise ConfigError(
                f"[privacy] lets out only what upload_like of {self.method.name} describes: {error}"
            ) from error


def in_floats(upload: Tensors) -> dict[str, Tensor]:
    """The form in which an upload leaves a client: what counts is not whole once it is clipped."""
    return {name: one if one.is_floating_point() else one.double() for name, one in upload.items()}


def bounded(upload: Tensors, method: Method) -> dict[str, Tensor]:
    """Each tensor no longer than half its sensitivity. `clip_upload` keeps uploads near each other;
    in a sum each must be short, because a client may be missing from it."""
    longest = method.upload_sensitivity() or {}
    return {
        name: upload[name].double() * clip_share([upload[name]], far / 2)
        for name, far in longest.items()
    }


# Noise that survives rounding. In floating point, x + noise takes other values for one x than for
# another, and their last bits tell which (Mironov 2012; Haney and others 2022); below the least
# numbers the noise is zero. So both are whole multiples of a step, and the noise is a discrete
# Gaussian, whose guarantee is that of the Gaussian (Canonne, Kamath and Steinke 2020).

_PART, TIMES = 1024, 512  # the noise is a sum of two parts, one of them taken so many times
DEVIATION = _PART * sqrt(TIMES**2 + 1)  # of the noise, in steps: 2^19
_LAST = round(13.3 * _PART)  # of a part; numbers beyond have a probability of 2^-131
_AT_ONCE = 2**18  # numbers drawn, to save memory
_SLACK = 1e-9  # more than float64 loses when it measures a length


def deviation(times: int) -> float:
    """Of `Draws.steps`, in steps."""
    return _PART * sqrt(times**2 + 1)


def largest(times: int) -> int:
    """Of the numbers that `Draws.steps` can draw."""
    return (_LAST + 1) * (times + 1)


def grid_step(apart: float, noise: float, count: int, deviation: float = DEVIATION) -> float:
    """The step for `count` numbers, of which two answers are at most `apart` from each other. To
    round them can make that `step * sqrt(count)` more, for which the noise makes up."""
    return noise * apart * (1 + _SLACK) / (2 * deviation - noise * sqrt(count))


def check_steps(noise: float, count: int) -> None:
    if noise * sqrt(count) > DEVIATION:
        raise ConfigError(f"privacy.noise = {noise:g} is too much for {count:,} numbers at once")


def noised(exact: Tensor, step: float, draws: Draws) -> Tensor:
    """In float64. Without noise, the step is 0."""
    if not step:
        return exact
    # Beyond 2^52 float64 has no room for the noise. To cut off brings no two answers further apart.
    steps = exact.div(step).round_().clamp_(-(2.0**52), 2.0**52)
    return steps.add_(draws.steps(exact)).mul_(step)


class Draws:
    """Whole numbers from a discrete Gaussian, by a cryptographic generator: the
    operating system's, or one with a key, whose numbers can be drawn again.

    torch's generators would not do. They use 32 bits of their seed, which can be tried one by one;
    and where the noise is larger than the signal, as it must be, replies show a generator's output
    almost bare, and the state of a Mersenne twister can be reconstructed from it.
    """

    def __init__(self, key: str | None = None) -> None:
        self._key, self._calls = key, 0

    def steps(self, like: Tensor, times: int = TIMES) -> Tensor:
        """Numbers in the shape and on the device of `like`. `times`, at most the usual, makes them
        smaller: see `deviation`."""
        drawn = np.empty(like.numel())
        for block in np.split(drawn, range(_AT_ONCE, drawn.size, _AT_ONCE)):
            raw = np.frombuffer(self._bytes(16 * block.size), dtype="<u8").reshape(2, block.size)
            # A sum of two discrete Gaussians is one, but for a factor within e^-78 of 1, because
            # the second is at least twice as wide as the multiples of the first are apart. So is a
            # sum of many draws, but for a factor of that for each.
            first, second = (_part(uniform, self._bytes) for uniform in raw)
            block[:] = times * first + second
        return on_device(torch.from_numpy(drawn).reshape(like.shape), like.device)

    def _bytes(self, count: int) -> bytes:
        if self._key is None:
            return os.urandom(count)
        self._calls += 1
        return hashlib.shake_256(f"{self._key}/{self._calls}".encode()).digest(count)


def _part(uniform: NDArray[np.uint64], more: Callable[[int], bytes]) -> NDArray[np.intp]:
    """Discrete Gaussians of deviation `_PART`: how many thresholds are not above numbers of 128
    bits, of which 64 decide but for one number in 2^49. The first 16 of those tell, but for the
    next threshold or, in the tails, for several."""
    exact, thresholds, known, several = _thresholds()
    top = uniform >> np.uint64(48)
    found: NDArray[np.intp] = known[top]
    found += thresholds[found] <= uniform
    tails = np.flatnonzero(several[top])
    found[tails] = np.searchsorted(thresholds, uniform[tails], side="right")
    for place in np.flatnonzero(thresholds[found - 1] == uniform):
        whole = int(uniform[place]) << 64 | int.from_bytes(more(8), "little")
        found[place] = bisect_right(exact, whole)
    found -= _LAST
    return found


@cache
def _thresholds() -> tuple[list[int], NDArray[np.uint64], NDArray[np.intp], NDArray[np.bool_]]:
    """The probability that a part is at most -LAST, -LAST + 1, ..., in units of 2^-128; its first
    64 bits; and for each value of the first 16 bits how many of those are not above it, and
    whether several follow before the next value."""
    with localcontext(prec=80):
        shrink = (Decimal(-1) / (2 * _PART**2)).exp()
        # exp(-k^2 / 2 s^2) from one k to the next, by factors that shrink evenly.
        factors = accumulate(range(_LAST - 1), lambda factor, _: factor * shrink**2, initial=shrink)
        half = [*accumulate(factors, operator.mul, initial=Decimal(1))]
        sums = [*accumulate([*half[:0:-1], *half])]
        exact = [min(int(part * 2**128 / sums[-1]), 2**128 - 1) for part in sums]
    thresholds = np.array([number >> 64 for number in exact], dtype=np.uint64)
    values = np.arange(2**16, dtype=np.uint64) << np.uint64(48)
    known = np.searchsorted(thresholds, values, side="right")
    return exact, thresholds, known, np.diff(known, append=thresholds.size) > 1


# What is covered


def check_covered(
    settings: PrivacySettings,
    method: Method,
    aggregation: str,
    model: nn.Module,
    upload: Tensors | None = None,
) -> None:
    """Refuse what would leave a client unprotected, or could not work. `upload` is an example of
    the method's upload; None if the method does not describe it."""
    if not settings.active:
        return
    _check_upload_covered(method, upload)
    if settings.central:
        _check_sums(method, aggregation)
    noise = settings.noise * settings.grain
    check_steps(noise, sum(parameter.numel() for parameter in model.parameters()))
    for tensor in (upload or {}).values():
        check_steps(noise * sqrt(len(upload or ())), tensor.numel())
    if aggregation in BY_SIZE:
        raise ConfigError(
            f'server.aggregation = "{aggregation}" weighs clients by how much data they have, '
            f'which [privacy] keeps from the server: use "uniform"'
        )
    if any(getattr(layer, "track_running_stats", False) for layer in sent_modules(model)):
        raise ConfigError(
            "[privacy] does not cover running statistics of clients' images: "
            'set model.norm = "group" or "batch-nostats", freeze those layers, or '
            'keep them at the clients: federation.personal = ["norms"]'
        )
    if len([*model.named_parameters(remove_duplicate=False)]) != len([*model.parameters()]):
        raise ConfigError("[privacy] cannot be used with a model whose layers share parameters")


def _check_sums(method: Method, aggregation: str) -> None:
    """The server has noise for the sum of a round's replies, and for nothing else."""
    if aggregation not in ("uniform", *BY_SIZE):
        raise ConfigError(
            f'server.aggregation = "{aggregation}" looks at single replies, and privacy.where = '
            f'"server" protects their sum: use "uniform"'
        )
    if method.keeps_all:
        raise ConfigError(
            f'{method.name} looks at single replies, and privacy.where = "server" protects their '
            f"sum: choose another method.name"
        )


def _check_upload_covered(method: Method, upload: Tensors | None) -> None:
    sensitivity = method.upload_sensitivity()
    if sensitivity is None:
        raise ConfigError(
            f"[privacy] covers weights alone, not what {method.name}, as it is set, sends beside "
            f"them: choose a method.name that sends nothing else, such as fedavg or dcfl-sw, set "
            f"method.prototype_normalize = true (dcfl-pw, fedproc), or define upload_sensitivity "
            f"in a method of your own (docs/privacy.md)"
        )
    if not method.overrides("upload"):
        return
    for name, distance in sensitivity.items():
        if not LEAST_LENGTH <= distance <= LARGEST_SETTING:
            raise ConfigError(
                f"{method.name}: upload_sensitivity of {name} must be at least {LEAST_LENGTH:g} "
                f"and at most {LARGEST_SETTING:,.0f}, not {distance:g}"
            )
    if upload is None:
        raise ConfigError(
            f"[privacy] needs to know the names and shapes of what {method.name} sends beside the "
            f"weights, which must not depend on the data: define upload_like"
        )
    if upload.keys() != sensitivity.keys():
        odd = ", ".join(sorted(upload.keys() ^ sensitivity.keys()))
        raise ConfigError(
            f"{method.name}: upload_like and upload_sensitivity must name the same tensors; "
            f"only one of them has {odd}"
        )


# What it is worth


def releases(method: Method) -> int:
    """How many protected vectors leave a client at each visit: the change of its parameters, and
    the method's upload if there is one. Each costs the same."""
    return 2 if method.upload_sensitivity() else 1


@dataclass(frozen=True)
class Schedule:
    """Who is asked when: public, and known before the first round."""

    clients: int
    participation: float
    seed: int
    rounds: int
    sampling: Sampling = FIXED

    @property
    def drawn(self) -> Drawn:
        return Drawn(self.clients, self.participation, self.rounds, self.sampling)

    def visits(self) -> Iterator[int]:
        """After each round: how often the client that was asked most has been asked."""
        asked = np.zeros(self.clients, dtype=np.int64)
        for round in range(1, self.rounds + 1):
            cohort = sample_cohort(
                self.clients, self.participation, self.seed, round, self.sampling
            )
            asked[cohort] += 1
            yield int(asked.max())

    def most_visits(self) -> int:
        return max(self.visits(), default=0)

    def rounds_within(self, visits: int) -> int:
        """How many rounds ask no client more often than this."""
        return sum(most <= visits for most in self.visits())


def spent(settings: PrivacySettings, released: int) -> float | None:
    """Epsilon at `settings.delta` of a client that has released this many protected vectors (see
    `releases`), against an observer who reads every reply and knows who was asked; None: no
    guarantee.

    No amplification by sampling is claimed: the operator knows the schedule.
    """
    return epsilon_at(distance(settings.noise, released), settings.delta)


def spent_centrally(settings: PrivacySettings, method: Method, drawn: Drawn) -> float | None:
    """The same for a client of a run whose noise the server adds, against an observer who sees the
    model of every round, and not who was drawn."""
    return _central(settings.noise / sqrt(releases(method)), drawn, settings.delta)


def _central(noise: float, drawn: Drawn, delta: float) -> float | None:
    """`noise`: for the weights and an upload together."""
    if noise < LEAST_ACCOUNTED or not drawn.rounds:
        return None if drawn.rounds else 0.0
    if drawn.sampling.in_turn:
        return epsilon_at(drawn.moved / noise, delta)
    reached = drawn.epsilon(noise, delta)
    if not drawn.sampling.poisson:  # what sampling adds is not always seen by its bound
        plain = epsilon_at(distance(noise, drawn.rounds + drawn.again), delta)
        reached = min(reached, inf if plain is None else plain)
    return reached if reached <= LARGEST_EPSILON else None


def noise_for(epsilon: float, delta: float, drawn: Drawn, released: int = 1) -> float:
    """The least privacy.noise at the server, with three digits; infinite if there is none.
    `released`: see `releases`."""
    found = least_noise(lambda noise: _central(noise, drawn, delta), epsilon, LEAST_ACCOUNTED)
    return _rounded_up(found * sqrt(released))


def epsilon_at(apart: float, delta: float) -> float | None:
    """Epsilon of answers to two data sets that are so far apart, by `distance`; None: no
    guarantee."""
    if apart == inf:
        return None
    delta_at = _deltas(apart)
    if delta_at(LARGEST_EPSILON) > delta:
        return None
    return _boundary(lambda epsilon: delta_at(epsilon) <= delta, LARGEST_EPSILON, 0.0)


def _reached(
    settings: PrivacySettings, method: Method, schedule: Schedule, again: int = 0
) -> float | None:
    """Epsilon after all rounds of the schedule, and so many more."""
    if settings.central:
        drawn = schedule.drawn._replace(correlated=settings.correlated, again=again)
        return spent_centrally(settings, method, drawn)
    return spent(settings, (schedule.most_visits() + again) * releases(method))


def check_budget(settings: PrivacySettings, method: Method, schedule: Schedule) -> None:
    """Refuse a run whose whole schedule would spend more than `settings.epsilon`."""
    if not settings.noise:
        return
    reached, most, delta = _reached(settings, method, schedule), settings.epsilon, settings.delta
    if not most or (reached is not None and reached <= most):
        return
    asked = fitting = coins = ""
    if settings.central:
        drawn, drawing = schedule.drawn._replace(correlated=settings.correlated), schedule.sampling
        noise = noise_for(most, delta, drawn, releases(method))
        if not (drawing.poisson or drawing.in_turn):
            coins = '; less with federation.sampling = "poisson"'
    else:
        visits, per_visit = schedule.most_visits(), releases(method)
        noise = noise_at_client(most, delta, visits * per_visit)
        answers = floor((_apart(most, delta) / distance(settings.noise, per_visit)) ** 2)
        rounds = schedule.rounds_within(answers)  # 0 answers where the distance is infinite
        asked = f", for which some client answers {visits} times,"
        fitting = f"at most {rounds} rounds fit; " if rounds else "not even one round fits; "
    would = f"privacy.noise = {noise:g} would do{coins}"
    raise ConfigError(
        f"privacy.epsilon = {most:g}: {schedule.rounds} rounds{asked} would "
        f"{'have no guarantee' if reached is None else f'reach epsilon {reached:.2f}'} "
        f"at delta {delta:g}; {fitting}{would if noise <= LARGEST_SETTING else 'no noise would do'}"
    )


def account(
    settings: PrivacySettings, method: Method, schedule: Schedule, repeated: int = 0
) -> dict[str, Any]:
    """What the run's summary says; empty if [privacy] is off.

    `repeated`: rounds that a resumed run did twice. With seeded noise the replies are the same,
    which reveals nothing new; with secret noise they differ, and count.
    """
    if not settings.active:
        return {}
    again = repeated if settings.secret else 0
    return {
        "epsilon": _reached(settings, method, schedule, again),
        "delta": settings.delta,
        "secret_noise": settings.secret,
        **({} if settings.central else {"most_visits": schedule.most_visits() + again}),
    }


HARMLESS = 0.1  # clips: the length of the noise in a round's mean


class NoiseNeeded(NamedTuple):
    """What a budget asks for, of noise that is added in one place."""

    where: str
    noise: float  # infinite: none would do
    cohort: float  # clients in a round
    on_mean: float  # the length of the noise in a round's mean, in clips
    harmless_cohort: float  # extrapolated: where that is `HARMLESS`, at the same participation
    harmless_clients: float

    def to_json(self) -> dict[str, str | float | None]:
        given = self._asdict().items()
        return {key: None if value == inf else value for key, value in given}


def noise_needed(
    epsilon: float, delta: float, schedule: Schedule, parameters: int, only: str = ""
) -> list[NoiseNeeded]:
    """For a method that sends its weights alone: at the server, with each way of sampling; at the
    clients, which pay for every visit; and in shares, if all clients reply with theirs. Correlated
    noise counts by what is left of it in the sum of all rounds, for each an equal part. `only`:
    for one privacy.where."""
    share, fixed = schedule.participation, schedule.drawn
    coins = fixed._replace(sampling=Sampling(poisson=True))
    turns = fixed._replace(sampling=Sampling(in_turn=True), correlated=True)
    together = round(fixed.sampling.expected(schedule.clients, share))
    unknown = ServerSettings(secure=True).survivors(together) - 1  # each client knows its own

    def at_server(drawn: Drawn) -> float:
        return noise_for(epsilon, delta, drawn)

    def of_visits(drawn: Drawn) -> float:
        return noise_at_client(epsilon, delta, schedule.most_visits())

    found = []
    for setting, where, needed, drawn, averaged, surplus in (
        ("server", "the server, federation.sampling=poisson", at_server, coins, 1, 1.0),
        ("server", "the server, in-turn, privacy.correlated", at_server, turns, 1, 1.0),
        ("server", "the server", at_server, fixed, 1, 1.0),
        ("client", "each client", of_visits, fixed, 2, 1.0),  # of which the mean is taken
        ("sum", "clients, in shares", of_visits, fixed, 1, together / unknown),
    ):
        if only not in ("", setting) or (setting == "sum" and together < 2):
            continue
        noise, cohort = needed(drawn), drawn.sampling.expected(schedule.clients, share)
        length = noise * sqrt(parameters * surplus) * drawn.left
        enough = max(1.0, (length / HARMLESS) ** averaged)
        on_mean = length / cohort ** (1 / averaged)
        found.append(NoiseNeeded(where, noise, cohort, on_mean, enough, enough / share))
    return found


def distance(noise: float, released: int) -> float:
    """How far apart the replies to two data sets can lie, in standard deviations of the noise.

    Two clipped vectors may point in opposite directions: twice the clip. Gaussian mechanisms, even
    if each depends on the results of earlier ones, compose to one whose squared distance is the sum
    of theirs. Infinite with noise too small for a guarantee.
    """
    return sqrt(4.0 * released) / noise if noise >= LEAST_ACCOUNTED else inf


def _deltas(scale: float) -> Callable[[float], float]:
    """Delta by epsilon of a Gaussian mechanism, from dp-accounting."""
    if scale == 0:
        return lambda epsilon: 0.0
    losses = dp_accounting().pld.privacy_loss_mechanism
    loss = losses.GaussianPrivacyLoss(1 / scale)
    return lambda epsilon: float(loss.get_delta_for_epsilon(epsilon))


def _apart(epsilon: float, delta: float) -> float:
    """How far apart answers may lie, by `distance`."""
    return _boundary(lambda scale: _deltas(scale)(epsilon) <= delta, 0.0, 1e3)


def noise_at_client(epsilon: float, delta: float, released: int) -> float:
    """The least privacy.noise at each client, with three digits; infinite if there is none."""
    apart = _apart(epsilon, delta)
    needed = distance(1.0, released) / apart if apart else inf
    return max(_rounded_up(needed), LEAST_ACCOUNTED)


def _boundary(fits: Callable[[float], bool], inside: float, outside: float) -> float:
    """The last number that fits on the way from `inside`, which does, to `outside`."""
    if fits(outside):
        return outside
    for _ in range(45):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if fits(middle) else (inside, middle)
    return inside


def _rounded_up(value: float) -> float:
    """The number with three digits that is not below it."""
    if not 0 < value < inf:
        return value
    unit = 10.0 ** (floor(log10(value)) - 2)
    return ceil(value / unit) * unit
