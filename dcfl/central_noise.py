"""Noise in the sum of a round's replies: [privacy] with where = "server" or "sum".

Where the server may not see single replies, each client adds a share of the noise to its own, in
fixed point: `NoisySum`, at the end. Where it may, it adds up what clients send, clips it once more,
since a client may not have, and adds Gaussian noise to each sum before it uses it. All else that it
makes of a round, its step, its optimiser's state and the method's, follows from these sums and is
as private as they are.

Nothing is then divided by how many have replied: that number tells of the data. The denominator is
the size of a cohort on average, and every reply counts the same.

The clip may follow a quantile (Andrew, Thakkar, McMahan and Ramaswamy, "Differentially Private
Learning with Adaptive Clipping", NeurIPS 2021): with b_i = 1 if the change of client i was within
the clip C, m the expected cohort and q the share of clients that shall be within,

    C <- C exp(-0.2 (b - q)),    b = 1/2 + (sum_i (b_i - 1/2) + noise) / m

Noise may be correlated over rounds (`amplification.py` has C, its sensitivity and the literature):
n_t = z_t - sum_k c_k n_(t-k), rounded down to a step. It does not depend on the data. Sums x_t are
whole multiples of `GRAIN` steps, so that C x is of whole steps as z is; and what the server uses,
x_t + n_t, is z_t + (C x)_t, less what follows from what it has used before, to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, exp, sqrt

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.amplification import GRAIN, bands_of
from dcfl.errors import ConfigError
from dcfl.messages import LOG, Broadcast, ClientUpdate, Tensors
from dcfl.methods.method import MeanUpload, Method, mean_of
from dcfl.privacy import (
    CLIP,
    COUNT_NOISE,
    LARGEST_SETTING,
    LEAST_LENGTH,
    TIMES,
    WITHIN,
    Draws,
    PrivacySettings,
    bounded,
    deviation,
    grid_step,
    largest,
    noised,
)
from dcfl.server.fixed_point import BITS, OTHERS, PARAMETERS, UPLOAD, FixedPoint, Piece
from dcfl.server.robust import Folded
from dcfl.tensors import clip_share

RATE = 0.2  # of the clip, as published


@dataclass(frozen=True)
class CentralNoise:
    """For all rounds of a run."""

    settings: PrivacySettings
    method: Method
    trainable: frozenset[str]
    upload: Tensors  # an example
    cohort: float  # clients in a round, on average
    seed: int
    bands: int = 1  # of how many rounds the noise is correlated
    # Noise of the last rounds, here only: whoever finds it in a file could subtract it.
    _past: dict[int, dict[str, Tensor]] = field(default_factory=dict, init=False)

    def begin(self, sent: Broadcast) -> RoundSums:
        clip = float(sent.shared.get(CLIP, self.settings.clip))
        return RoundSums(self, sent, clip, self._draws(sent.round))

    def _draws(self, round: int) -> Draws:
        return Draws(None if self.settings.secret else f"{self.seed}/{round}/server/privacy")

    def noise(self, round: int, like: Tensors, draws: Draws) -> dict[str, Tensor]:
        """In steps, for sums by name. Seeded noise of earlier rounds is drawn again if it is not at
        hand; where it is secret, a process that goes on begins without."""
        fresh = {name: draws.steps(total) for name, total in like.items()}
        if self.bands == 1:
            return fresh
        past = self._past
        if round - 1 not in past:
            past.clear()
            for earlier in range(1, 1 if self.settings.secret else round):
                self.noise(earlier, like, self._draws(earlier))
        for forgotten in [one for one in past if not round - self.bands < one < round]:
            del past[forgotten]
        bands = bands_of(self.bands)
        for name, noise in fresh.items():
            before = torch.zeros_like(noise)
            for earlier, noises in past.items():
                before.add_(noises[name], alpha=bands[round - earlier])
            noise.sub_(before.div_(GRAIN).floor_())
        past[round] = {name: noise.to(torch.int32) for name, noise in fresh.items()}
        return fresh


@dataclass
class RoundSums:
    """A round's replies, added up; whole numbers of steps, so that their order plays no part."""

    about: CentralNoise
    sent: Broadcast
    clip: float
    draws: Draws
    _sums: dict[str, Tensor] = field(init=False)  # of changes and, in a folder, of uploads
    _steps: dict[str, float] = field(init=False)
    _within: float = 0.0  # sum of b_i - 1/2
    clients: int = 0  # and what else `Sums` of the server has after `finish`
    upload: Tensors = field(init=False)
    mean: MeanUpload = field(init=False)
    mean_square: float = 0.0
    told: Tensors = field(init=False)

    def __post_init__(self) -> None:
        about, noise, grain = self.about, self.about.settings.on_sums, self.about.settings.grain
        # Rounded so coarsely, a number is as far off as grain² numbers rounded to steps.
        like = {name: one for name, one in self.sent.weights.items() if name in about.trainable}
        count = sum(one.numel() for one in like.values()) * grain**2
        self._steps = dict.fromkeys(like, grain * grid_step(2 * self.clip, noise, count))
        sensitivity, each = about.method.upload_sensitivity() or {}, noise * sqrt(len(about.upload))
        for name, one in about.upload.items():
            like[UPLOAD + name] = one
            step = grid_step(sensitivity[name], each, one.numel() * grain**2)
            self._steps[UPLOAD + name] = grain * step
        self._sums = {
            name: torch.zeros(one.shape, dtype=torch.float64) for name, one in like.items()
        }

    def add(self, update: ClientUpdate) -> None:
        """Take a valid reply."""
        exact = clipped(update, self.sent.weights, self._sums, self.clip, self.about.method)
        for name, tensor in exact.items():
            self._sums[name].add_(_in_steps(tensor, self._steps[name]))
        self._within += 0.5 if update.metrics.get(WITHIN, 0.0) > 0.5 else -0.5

    def finish(self, sent: Tensors) -> Folded:
        """The sums with their noise, by the expected number of replies. Do not call it twice: the
        noise would be another. The method sees no length of a single reply, but their mean's."""
        means = self._means()
        direction = {name: mean for name, mean in means.items() if name in sent}
        self.upload = {name: means[UPLOAD + name] for name in self.about.upload}
        self.clients = max(1, round(self.about.cohort))
        self.mean = replace(mean_of([self.upload]), clients=self.clients)
        self.mean_square = sum(float(one.square().sum()) for one in direction.values())
        self.told = self._next_clip()
        return Folded(direction, named.split(sent, direction)[1])

    def _means(self) -> dict[str, Tensor]:
        cohort, sums, grain = self.about.cohort, self._sums, self.about.settings.grain
        if not self.about.settings.noise:
            return {name: total.div_(cohort) for name, total in sums.items()}
        for name, noise in self.about.noise(self.sent.round, sums, self.draws).items():
            sums[name].mul_(grain).add_(noise).mul_(self._steps[name] / grain / cohort)
        return sums

    def _next_clip(self) -> dict[str, Tensor]:
        settings = self.about.settings
        if not settings.quantile:
            return {}
        step = grid_step(1.0, COUNT_NOISE * settings.noise, 1)
        total = noised(torch.tensor([self._within], dtype=torch.float64), step, self.draws)
        within = 0.5 + float(total) / self.about.cohort
        clip = self.clip * exp(-RATE * (within - settings.quantile))
        clip = min(max(clip, LEAST_LENGTH), LARGEST_SETTING)
        value = torch.tensor(clip, dtype=torch.float64)
        return {CLIP: value, f"{LOG}clip": value}


def clipped(
    update: ClientUpdate, sent: Tensors, names: Collection[str], clip: float, method: Method
) -> dict[str, Tensor]:
    """What a reply adds to the sums, in float64: its change of the weights with these names, as
    long as the clip at most, and its upload."""
    own = named.split(sent, names)[0].items()
    exact = {name: update.weights[name].double() - start.double() for name, start in own}
    share = clip_share(exact.values(), clip)
    upload = bounded(update.upload, method).items()
    return {
        **{name: change.mul_(share) for name, change in exact.items()},
        **{UPLOAD + name: tensor for name, tensor in upload},
    }


def _in_steps(exact: Tensor, step: float) -> Tensor:
    return exact.div_(step).round_() if step else exact


@dataclass(frozen=True)
class NoisySum(FixedPoint):
    """Replies in fixed point, each with a share of the noise that their sum shall have.

    A sum is of `survivors` replies or more. Some of these clients may tell what they added, as each
    can tell itself: the shares of the others alone make up the noise, and what else arrives is more
    than is accounted for. The steps are those of the noise, so that nothing is rounded twice, and
    as fine as they can be without a sum that wraps, whatever is drawn.
    """

    settings: PrivacySettings
    method: Method
    seed: int

    @property
    def honest(self) -> int:
        """Shares in a sum that nobody else knows."""
        return self.survivors - max(1, ceil(self.settings.colluding * self.clients - 1e-9))

    @property
    def share(self) -> float:
        """The noise in a single reply, as a multiple of the clip."""
        return self.settings.noise / sqrt(self.honest)

    def check(self, weights: Tensors) -> None:
        """Refuse what leaves no noise, or does not fit into the numbers."""
        if self.honest < 1:
            raise ConfigError(
                f"privacy.colluding = {self.settings.colluding:g} of {self.clients} clients a "
                f"round: {self.survivors} replies make a sum (server.secure_threshold), and nobody "
                f"may be left whose noise is secret"
            )
        self.pieces(weights)

    def exact(self, update: ClientUpdate, received: Tensors) -> dict[str, Tensor]:
        return clipped(update, received, self.trainable, self.settings.clip, self.method)

    def whole(
        self, exact: Tensors, client: int, broadcast: Broadcast
    ) -> Iterator[tuple[Piece, Tensor]]:
        seeded = f"{self.seed}/{broadcast.round}/{client}/privacy"
        draws = Draws(None if self.settings.secret else seeded)
        times = {PARAMETERS: self._grid(broadcast.weights)[0], OTHERS: TIMES}
        for piece in self.pieces(broadcast.weights):
            steps = _in_steps(exact[piece.name], piece.step)
            yield piece, steps.add_(draws.steps(steps, times[piece.part]))

    def pieces(self, received: Tensors) -> list[Piece]:
        """All else would tell of single replies."""
        _, step = self._grid(received)
        sensitivity = self.method.upload_sensitivity() or {}
        each = self.share * sqrt(len(self.upload))
        return [
            *(Piece(one, PARAMETERS, received[one].shape, step) for one in self._own(received)),
            *(
                Piece(UPLOAD + name, OTHERS, like.shape, step_of)
                for name, like in sorted(self.upload.items())
                for step_of in [grid_step(sensitivity[name], each, like.numel())]
            ),
        ]

    def _own(self, received: Tensors) -> list[str]:
        return sorted(self.trainable.intersection(received))

    def _grid(self, received: Tensors) -> tuple[int, float]:
        """How wide the noise on parameters is (see `Draws.steps`), and its step."""
        count, clip = sum(received[one].numel() for one in self._own(received)), self.settings.clip
        times = TIMES
        while times and self.share * sqrt(count) <= deviation(times):
            step = grid_step(2 * clip, self.share, count, deviation(times))
            if self.clients * (clip / step + 1 + largest(times)) < 1 << BITS[PARAMETERS]:
                return times, step
            times //= 2
        raise ConfigError(
            f"privacy.noise = {self.settings.noise:g}: the sum of {self.clients} clients and their "
            f"noise on {count:,} numbers does not fit into 32 bits: ask fewer clients in a round"
        )
