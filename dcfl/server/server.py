"""The server: a pure function from a state and the clients' replies to a new state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, inf
from statistics import median_low
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import torch
from torch import Tensor

from dcfl import tensors as named
from dcfl.clock.state import ClockState
from dcfl.errors import ClientFailure, ConfigError, Diverged, ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic, private_and_rest
from dcfl.methods.method import (
    MeanUpload,
    Method,
    ServerStep,
    UploadsSoFar,
    addressed,
)
from dcfl.server.aggregation import ROBUST, Aggregation, Fold, Mean, fold_for
from dcfl.server.compression import Compression
from dcfl.server.fixed_point import FixedPoint, SecureMean
from dcfl.server.optimizers import ServerOptimizer
from dcfl.server.robust import Defence, Folded, Names
from dcfl.server.validation import Schema, check_like, check_update
from dcfl.settings import Settings, key
from dcfl.system.processes import Terminated


@dataclass(frozen=True)
class ServerSettings(Settings):
    """The [server] table."""

    table_name: ClassVar = "server"

    # The plain mean as in Algorithm 1; "samples": weighted by n_k, as in Eq. 1; "fednova": by their
    # steps; the others withstand attackers.
    aggregation: Aggregation = "uniform"
    optimizer: ServerOptimizer = ServerOptimizer()  # its fields stand in the same table
    # Share of the clients that may be attackers, for the robust aggregations.
    byzantine: float = key(0.2, ge=0, lt=0.5, hint="no rule withstands a majority")
    # Bound of "norm-clipping"; 0: the median of the round's norms.
    clip_norm: float = key(0.0, ge=0, zero="the median of a round's norms")
    # Secure aggregation: the server sees the sum of the replies and no single one.
    secure: bool = False
    # Bound of every single number of a client's change, where replies are summed in fixed point.
    secure_range: float = key(1.0, gt=0, le=10**6)
    # The share of a round's clients without whose replies there is no sum. With one half, a server
    # could tell two halves of the clients different things about one of them.
    secure_threshold: float = key(0.66, gt=0.5, le=1)

    def survivors(self, cohort: int) -> int:
        """How many replies a secure sum of a round of so many clients needs."""
        return max(2, ceil(self.secure_threshold * cohort - 1e-9)) if self.secure else 1

    def defence(self, population: int) -> Defence:
        return Defence(self.byzantine, self.clip_norm, population)

    def replies_needed(self, replies: int, population: int) -> int:
        """How many replies the rule needs for its guarantee, in a round with `replies` replies."""
        rule = ROBUST.get(self.aggregation)
        return rule([], self.defence(population)).needed(replies) if rule else 1

    def require_replies(self, cohort: int, clients: int) -> None:
        """Refuse a robust rule that needs more replies than a round can bring."""
        needed = self.replies_needed(cohort, clients)
        if needed > cohort:
            sizes = range(cohort, clients + 1)
            enough = next((n for n in sizes if self.replies_needed(n, clients) <= n), 0)
            more = f"federation.participation = {enough / clients:g} ({enough} clients), "
            raise ConfigError(
                f'server.aggregation = "{self.aggregation}" with {cohort} of {clients} clients a '
                f"round, of which server.byzantine = {self.byzantine:g} lets {(needed - 3) // 2} "
                f"be attackers, needs {needed} replies: set {more if enough else ''}a smaller "
                f'server.byzantine or another rule, such as "median"'
            )

    def check_method(self, method: Method) -> None:
        """Refuse what the method's own part of the server does not go with."""
        if self.secure:
            self._check_sums(method)
        optimizer, plain = self.optimizer.name, self.aggregation in ("uniform", "samples")
        if not method.any_optimizer and optimizer != ServerOptimizer.name:
            raise ConfigError(
                f'server.optimizer = "{optimizer}": {method.name} says itself where the server\'s '
                f'weights go; use "{ServerOptimizer.name}"'
            )
        if not plain and (not method.any_aggregation or method.overrides("weigh")):
            raise ConfigError(
                f'server.aggregation = "{self.aggregation}": {method.name} needs the mean of all '
                f'replies; use "uniform" or "samples"'
            )

    def _check_sums(self, method: Method) -> None:
        """Refuse what needs more of the replies than their sum."""
        rule = f'server.aggregation = "{self.aggregation}"'
        if self.aggregation != "uniform":
            sizes = self.aggregation in ("samples", "fednova")
            why = f"{rule} {'weighs replies by sizes' if sizes else 'compares single replies'}"
        elif method.keeps_all:
            why = f"{method.name} looks at single replies"
        elif not self.fitted(method).adds_up:
            why = f"what {method.name} merges, as it is set, is not a sum of uploads"
        else:
            return
        instead = "another method" if self.aggregation == "uniform" else 'aggregation = "uniform"'
        raise ConfigError(
            f"with server.secure the server sees sums alone, and {why}: use {instead}"
        )

    def fitted(self, method: Method) -> Method:
        """The method with its `merge` as robust as the aggregation of weights."""
        return method.fitted(self.aggregation in ROBUST)


@dataclass(frozen=True)
class ServerState:
    """Everything the server knows after a round."""

    round: int
    weights: Tensors  # parameters and buffers of the global model
    shared: Tensors  # the method's state, such as prototypes
    slots: Tensors  # the server optimiser's state, such as momentum
    kept: Tensors = field(default_factory=dict)  # the method's own, which is never sent
    clock: ClockState | None = None  # with a clock, or if clients are chosen by what they reported


@dataclass(frozen=True)
class ClientReport:
    """The outcome of one sampled client."""

    client: int
    outcome: Literal["ok", "failed", "late", "rejected"]
    reason: str = ""
    num_examples: int = 0
    num_steps: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    used: bool = False  # whether the reply entered the model; not every valid one does
    began: float | None = None  # of its visit, in virtual seconds; None without a clock
    ended: float | None = None
    staleness: int = 0  # steps of the server's model during the visit


class NotKept(Sequence[Any]):
    """In place of replies: empty ones would let a method go on as if nobody had replied."""

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ValueError(
            "step.replies and step.shares are kept if the class says keeps_replies: ClassVar = True"
        )


class Replies:
    """A round's replies, as far as the method's part of the server needs them.

    A method with `merge_mean` has its uploads added up as they arrive: memory does not grow with
    the cohort. All others get a list of them at the end of the round, and so does every method
    under a robust aggregation, which knows only then whose replies it rejects. Those rules keep all
    weights anyway. Lengths are measured here: a client that reported its own could claim anything.
    """

    def __init__(self, method: Method, aggregation: Aggregation, trainable: Names) -> None:
        self.weighs = method.overrides("weigh")
        self._method, self._aggregation, self._trainable = method, aggregation, trainable
        # A `merge` of its own wins: it may stand in a class derived from one with `merge_mean`.
        folds = method.overrides("merge_mean") and not method.overrides("merge")
        self.sum = UploadsSoFar() if folds and aggregation not in ROBUST else None
        self._measures = method.overrides("server_step")
        self._kept: list[ClientUpdate] = []  # what has to be: their weights, their uploads
        self._squares: dict[int, float] = {}  # of the length of each client's change
        self._shares: dict[int, float] = {}  # their weights in the mean

    def add(self, update: ClientUpdate, sent: Tensors) -> None:
        """Take a valid reply. The next one may reuse its memory."""
        by_size = self._aggregation in ("samples", "fednova")
        self._shares[update.client] = float(update.num_examples) if by_size else 1.0
        if self._measures:
            self._squares[update.client] = sum(
                float(torch.linalg.vector_norm(tensor - sent[name], dtype=torch.float64)) ** 2
                for name, tensor in update.weights.items()
                if name in self._trainable
            )
        if self.sum is not None:
            self.sum.add(update.upload)
        if self._method.keeps_all or self.sum is None:
            weights = named.copies(update.weights) if self._method.keeps_all else {}
            upload = named.copies(update.upload)
            self._kept.append(replace(update, weights=weights, upload=upload))

    def merged(self, shared: Tensors, population: int, rejected: Collection[int]) -> Tensors:
        """What the method shares next. Do not call `add` afterwards."""
        if self.sum is not None:
            return self._method.merge_mean(shared, self.sum.mean(), population)
        used = [update.upload for update in self._kept if update.client not in rejected]
        return self._method.merge(shared, used, population)

    def weighed(self) -> Mean:
        """The mean with the method's weights."""
        given = self._method.weigh(self._kept, [*self._shares.values()])
        shares = [float(share) for share in given]
        if len(shares) != len(self._kept) or not 0 < sum(shares) < inf or min(shares) < 0:
            raise ValueError(f"needs a weight for each reply, none below 0, not all 0: {shares}")
        self._shares = dict(zip(self._shares, shares, strict=True))
        mean = Mean(self._trainable, lambda update: self._shares[update.client])
        for update in self._kept:
            mean.add(update)
        return mean

    def seen(self, step: ServerStep, rejected: Collection[int]) -> ServerStep:
        """The step with what the method may know of the replies."""
        used = {client: self._shares[client] for client in self._shares if client not in rejected}
        squares = [self._squares[client] for client in used]
        if self._aggregation in ROBUST:
            square = median_low(squares)
        else:
            total = sum(used.values())
            square = sum(share * one for share, one in zip(used.values(), squares, strict=True))
            square /= total
        step = replace(step, clients=len(used), mean_square=square)
        if not self._method.keeps_all:
            return step
        replies = [update for update in self._kept if update.client in used]
        return replace(step, replies=replies, shares=[*used.values()])


class Sums(Fold, Protocol):
    """A fold that knows no single reply. After `finish`:"""

    clients: int  # in the sums
    upload: Tensors  # what `merge` gets as if it were the only one
    mean: MeanUpload
    mean_square: float  # of the length of a change
    told: Tensors  # what is shared beside what the method shares


class RepliesInSum(Replies):
    """Of which only a sum is known."""

    def __init__(self, method: Method, fold: Sums) -> None:
        super().__init__(method, "uniform", ())
        self._fold = fold

    def add(self, update: ClientUpdate, sent: Tensors) -> None:
        """It is in the fold."""

    def merged(self, shared: Tensors, population: int, rejected: Collection[int]) -> Tensors:
        fold, (_, own) = self._fold, private_and_rest(shared)
        if self._method.overrides("merge"):
            return self._method.merge(own, [fold.upload] if fold.upload else [], population)
        return self._method.merge_mean(own, fold.mean, population)

    def seen(self, step: ServerStep, rejected: Collection[int]) -> ServerStep:
        return replace(step, clients=self._fold.clients, mean_square=self._fold.mean_square)


class PrivateRounds(Protocol):
    def begin(self, sent: Broadcast) -> Sums: ...


# Of a reply and what its round's clients received: the reply as the mean takes it.
Understanding = Callable[[ClientUpdate, Broadcast], ClientUpdate]


@dataclass(frozen=True)
class Server:
    method: Method
    population: int  # clients in the federation
    trainable: frozenset[str]  # the names of parameters, as opposed to buffers
    training: LocalTraining  # tells FedNova what a client's steps are worth
    settings: ServerSettings = ServerSettings()
    minimum_replies: int = 1  # a round with fewer does not change the model
    upload: Tensors | None = None  # an example of the method's upload; see Schema
    unsent: frozenset[str] = frozenset()  # names of weights that clients have: frozen or personal
    fixed_point: FixedPoint | None = None  # the form of replies that are seen as a sum alone
    private: PrivateRounds | None = None  # if it adds noise to a round's sums
    compression: Compression = Compression()

    @cached_property
    def _fitted(self) -> Method:
        return self.settings.fitted(self.method)

    @cached_property
    def _schema(self) -> Schema:
        return Schema(self.method, self.training, self.upload)

    def broadcast(self, state: ServerState) -> Broadcast:
        _, sent = named.split(state.weights, self.unsent)
        parameters, buffers = named.split(sent, self.trainable)
        outgoing = self.settings.optimizer.outgoing(parameters, state.slots)
        made = Broadcast(state.round + 1, {**buffers, **outgoing}, state.shared)
        return self.compression.packed(made)

    def aggregate(
        self,
        state: ServerState,
        broadcast: Broadcast,
        replies: Iterable[ClientUpdate | ClientFailure],
        understood: Understanding | None = None,
    ) -> tuple[ServerState, list[ClientReport]]:
        """Fold the valid replies one by one, in the order they arrive, which is client order.

        A round with fewer valid replies than `minimum_replies`, or than the rule needs, changes
        nothing. Replies that the rule rejects are left out of `merge` too. Clients have trained
        from what they have unpacked of the broadcast. `understood`: how a reply is unpacked, if
        clients may have trained from an earlier broadcast.
        """
        understood = understood or self.compression.received_update
        received, method = self.compression.received(broadcast), self._fitted
        rule, defence = self.settings.aggregation, self.settings.defence(self.population)
        sums = self._sums(received)
        fold = sums or fold_for(rule, self.trainable, self.training, defence)
        replied = RepliesInSum(method, sums) if sums else Replies(method, rule, self.trainable)
        reports: list[ClientReport] = []
        for reply in replies:
            report, update = self._admit(reply, broadcast, received, understood)
            reports.append(report)
            if update is not None:
                with self._blaming("merge"):
                    replied.add(update, received.weights)
                if not replied.weighs:
                    fold.add(update)
        valid = sum(report.outcome == "ok" for report in reports)
        # With noise, a round without a reply changes the model too: else that would tell of data.
        if self.private is None and valid < self.wanted(valid):
            return replace(state, round=broadcast.round), reports
        if replied.weighs:
            with self._blaming("weigh"):
                fold = replied.weighed()
        folded = fold.finish(received.weights)
        if method.overrides("server_step"):
            shared = self._merged(replied, state, folded)
            seen = replied.seen(self._ended(state, broadcast, folded, shared), folded.rejected)
            folded, shared, kept = self._method_step(seen, folded)
            weights, slots = self._step(state, folded)
        else:  # the direction, a float64 model, is gone before anything is merged
            weights, slots = self._step(state, folded)
            shared, kept = self._merged(replied, state, folded), state.kept
        reports = [
            replace(report, used=report.outcome == "ok" and report.client not in folded.rejected)
            for report in reports
        ]
        told = sums.told if sums else {}
        return ServerState(broadcast.round, weights, {**shared, **told}, slots, kept), reports

    def _sums(self, received: Broadcast) -> Sums | None:
        if self.private is not None:
            return self.private.begin(received)
        return SecureMean(self.fixed_point) if self.fixed_point is not None else None

    def _merged(self, replied: Replies, state: ServerState, folded: Folded) -> Tensors:
        with self._blaming("merge"):
            shared = replied.merged(state.shared, self.population, folded.rejected)
        self._require_tensors(shared, "merge")
        return shared

    def _ended(
        self, state: ServerState, broadcast: Broadcast, folded: Folded, shared: Tensors
    ) -> ServerStep:
        """The end of the round, but for the replies."""
        return ServerStep(
            broadcast.round,
            clients=0,
            population=self.population,
            lr=self.training.lr_in(broadcast.round) / (1 - self.training.momentum),
            weights={name: state.weights[name] for name in folded.direction},
            direction=folded.direction,
            buffers=folded.buffers,
            mean_square=0.0,
            shared=shared,
            kept=state.kept,
            replies=NotKept(),
            shares=NotKept(),
        )

    def _method_step(self, before: ServerStep, folded: Folded) -> tuple[Folded, Tensors, Tensors]:
        """What the method makes of the direction, of what is shared and of its own state."""
        with self._blaming("server_step"):
            after = self._fitted.server_step(before)
            check_like(after.direction, folded.direction, "direction")
            check_like(after.buffers, folded.buffers, "buffers")
        for tensors in (after.shared, after.kept):
            self._require_tensors(tensors, "server_step")
        if lost := named.not_finite(after.kept) or named.not_finite(after.shared):
            raise Diverged(
                f"round {before.round}: {self.method.name} leaves {lost} on the server no "
                f"longer finite: lower training.lr or the method's weight"
            )
        moved = folded._replace(direction=dict(after.direction), buffers=dict(after.buffers))
        return moved, named.canonical(after.shared), named.canonical(after.kept)

    @contextmanager
    def _blaming(self, hook: str) -> Iterator[None]:
        """Blames the method, which may be a user's, for whatever goes wrong in the block."""
        try:
            yield
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # an exit would end the run as if all were well
            raise ConfigError(
                f"{self.method.name}: {hook} raised {type(error).__name__}: {error}"
            ) from error

    def _require_tensors(self, made: object, hook: str) -> None:
        """A user's method may return anything, and the next round would fail."""
        if not isinstance(made, Mapping):
            raise ConfigError(f"{self.method.name}: {hook} must return tensors by name")
        for name, tensor in made.items():
            if not isinstance(tensor, Tensor):
                raise ConfigError(
                    f"{self.method.name}: {hook} must return tensors by name, and {name!r} is of "
                    f"type {type(tensor).__name__}: use torch.tensor(...)"
                )

    def wanted(self, replies: int) -> int:
        """How many valid replies a round with `replies` replies needs to change the model."""
        needed = self.settings.replies_needed(replies, self.population)
        return max(self.minimum_replies, needed)

    def _admit(
        self,
        reply: ClientUpdate | ClientFailure,
        broadcast: Broadcast,
        received: Broadcast,
        understood: Understanding,
    ) -> tuple[ClientReport, ClientUpdate | None]:
        """What became of a reply, and the reply itself, unpacked, if it is valid."""
        sent = addressed(broadcast, self._fitted, reply.client)
        up = 0 if isinstance(reply, ClientFailure) else reply.num_bytes
        up, down = reply.traffic or Traffic(up, sent.num_bytes)
        report = ClientReport(reply.client, "ok", bytes_up=up, bytes_down=down)
        if isinstance(reply, ClientFailure):
            return replace(report, outcome=reply.outcome, reason=reply.reason), None
        try:
            update = understood(reply, received)
            if self.fixed_point is None:
                check_update(update, received, self._schema)
            elif reply.weights:  # else it is in another reply's sum
                check_like(reply.weights, self.fixed_point.example(received.weights), "reply")
        except ProtocolError as error:
            return replace(report, outcome="rejected", reason=str(error)), None
        examples, steps = reply.num_examples, reply.num_steps
        told = replace(report, num_examples=examples, num_steps=steps, metrics=reply.metrics)
        return told, update

    def _step(self, state: ServerState, folded: Folded) -> tuple[Tensors, Tensors]:
        """The optimiser moves the parameters; buffers are simply replaced.

        One tensor at a time: a float64 copy of a large model would be the server's largest object.
        """
        moved: dict[str, Tensor] = {}
        slots = dict(state.slots)
        for name, before in state.weights.items():
            if name in self.unsent:
                moved[name] = before
                continue
            after: Tensors = folded.buffers
            if name in folded.direction:
                direction = {name: folded.direction.pop(name)}
                after, kept = self.settings.optimizer.step({name: before}, direction, state.slots)
                slots.update(kept)
            moved.update(named.cast_like({name: after[name]}, state.weights))
        if (lost := named.not_finite(moved)) is not None:
            own = f"of {self.method.name}, " if self._fitted.overrides("server_step") else ""
            raise Diverged(
                f"round {state.round + 1}: the step {own}of server.optimizer = "
                f'"{self.settings.optimizer.name}" leaves {lost} no longer finite: take smaller '
                f"steps (server.lr, server.momentum, training.lr)"
            )
        return moved, slots
