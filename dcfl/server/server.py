"""The server: a pure function from a state and the clients' replies to a new state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

from torch import Tensor

from dcfl import tensors as named
from dcfl.errors import ClientFailure, ConfigError, ProtocolError
from dcfl.local_training import LocalTraining
from dcfl.messages import Broadcast, ClientUpdate, Tensors, Traffic
from dcfl.methods.method import Method, UploadsSoFar
from dcfl.server.aggregation import AGGREGATIONS, ROBUST, Aggregation, replies_needed
from dcfl.server.optimizers import ServerOptimizer
from dcfl.server.robust import Defence, Folded
from dcfl.server.validation import Schema, check_update
from dcfl.settings import Settings, key


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

    def defence(self, population: int) -> Defence:
        return Defence(self.byzantine, self.clip_norm, population)

    def replies_needed(self, replies: int, population: int) -> int:
        """How many replies the rule needs, in a round with `replies` replies."""
        return replies_needed(self.aggregation, replies, self.defence(population))

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


class Uploads:
    """The uploads of a round on their way to the method's merge.

    A method with `merge_mean` has them added up as they arrive: memory does not grow with the
    cohort. All others get a list of them at the end of the round, and so does every method under a
    robust aggregation, which knows only then whose replies it rejects. Those rules keep all weights
    anyway.
    """

    def __init__(self, method: Method, robust: bool) -> None:
        self._method = method
        # A `merge` of its own wins: it may stand in a class derived from one with `merge_mean`.
        folds = method.overrides("merge_mean") and not method.overrides("merge")
        self.sum = UploadsSoFar() if folds and not robust else None
        self._kept: list[tuple[int, Tensors]] = []

    def add(self, update: ClientUpdate) -> None:
        """Take the upload of a valid reply. The next reply may reuse its memory."""
        if self.sum is not None:
            self.sum.add(update.upload)
        else:
            self._kept.append((update.client, named.copies(update.upload)))

    def merged(self, shared: Tensors, population: int, rejected: Collection[int]) -> Tensors:
        """What the method shares next. Do not call `add` afterwards."""
        if self.sum is not None:
            return self._method.merge_mean(shared, self.sum.mean(), population)
        used = [upload for client, upload in self._kept if client not in rejected]
        return self._method.merge(shared, used, population)


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
        return Broadcast(state.round + 1, {**buffers, **outgoing}, state.shared)

    def aggregate(
        self,
        state: ServerState,
        broadcast: Broadcast,
        replies: Iterable[ClientUpdate | ClientFailure],
    ) -> tuple[ServerState, list[ClientReport]]:
        """Fold the valid replies one by one, in the order they arrive, which is client order.

        A round with fewer valid replies than `minimum_replies`, or than the rule needs, changes
        nothing. Replies that the rule rejects are left out of `merge` too.
        """
        settings = self.settings
        defence = settings.defence(self.population)
        fold = AGGREGATIONS[settings.aggregation](self.trainable, self.training, defence)
        uploads = Uploads(self._fitted, settings.aggregation in ROBUST)
        reports: list[ClientReport] = []
        for reply in replies:
            report = self._admit(reply, broadcast)
            reports.append(report)
            if report.outcome == "ok" and isinstance(reply, ClientUpdate):
                fold.add(reply)
                with self._merging():
                    uploads.add(reply)
        valid = sum(report.outcome == "ok" for report in reports)
        if valid < self.wanted(valid):
            return ServerState(broadcast.round, state.weights, state.shared, state.slots), reports
        folded = fold.finish(broadcast.weights)
        weights, slots = self._step(state, folded)
        with self._merging():
            shared = uploads.merged(state.shared, self.population, folded.rejected)
        self._require_tensors(shared)
        reports = [
            replace(report, used=report.outcome == "ok" and report.client not in folded.rejected)
            for report in reports
        ]
        return ServerState(broadcast.round, weights, shared, slots), reports

    @contextmanager
    def _merging(self) -> Iterator[None]:
        """Blames the method, which may be a user's, for whatever goes wrong in the block."""
        try:
            yield
        except Exception as error:
            raise ConfigError(
                f"{self.method.name}: merge raised {type(error).__name__}: {error}"
            ) from error

    def _require_tensors(self, merged: object) -> None:
        """A user's method may return anything, and the next round would fail."""
        if not (
            isinstance(merged, Mapping) and all(isinstance(t, Tensor) for t in merged.values())
        ):
            raise ConfigError(f"{self.method.name}: merge must return tensors by name")

    def wanted(self, replies: int) -> int:
        """How many valid replies a round with `replies` replies needs to change the model."""
        needed = self.settings.replies_needed(replies, self.population)
        return max(self.minimum_replies, needed)

    def _admit(self, reply: ClientUpdate | ClientFailure, broadcast: Broadcast) -> ClientReport:
        if isinstance(reply, ClientFailure):
            up, down = reply.traffic or Traffic(0, broadcast.num_bytes)
            return ClientReport(
                reply.client, reply.outcome, reply.reason, bytes_up=up, bytes_down=down
            )
        up, down = reply.traffic or Traffic(reply.num_bytes, broadcast.num_bytes)
        try:
            check_update(reply, broadcast, self._schema)
        except ProtocolError as error:
            return ClientReport(reply.client, "rejected", str(error), bytes_up=up, bytes_down=down)
        return ClientReport(
            reply.client,
            "ok",
            num_examples=reply.num_examples,
            num_steps=reply.num_steps,
            bytes_up=up,
            bytes_down=down,
            metrics=reply.metrics,
        )

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
        return moved, slots
