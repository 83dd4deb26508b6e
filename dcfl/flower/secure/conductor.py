"""The server's half of secure aggregation. A step that fails ends the round without a sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from dcfl.errors import ClientFailure, ProtocolError
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.secure.masking import SHARE_BYTES, Ring, joined, public
from dcfl.flower.secure.member import (
    KEYS_BYTES,
    SEALED_BYTES,
    Directory,
    Keys,
    own_mask,
    pair_mask,
    sign,
)
from dcfl.messages import ClientUpdate, Tensors
from dcfl.server.fixed_point import FixedPoint
from dcfl.server.validation import check_like

Records = Mapping[str, ArrayRecord | ConfigRecord]
Read = Callable[[RecordDict, Task], Any]
# A message of a kind to each client: what was read of the answers, without clients that are lost.
Ask = Callable[[str, Mapping[int, Records], Read], dict[int, Any]]


@dataclass(frozen=True)
class Conductor:
    form: FixedPoint
    task: Task  # of the round, of no client
    ask: Ask

    def run(
        self, cohort: Collection[int], broadcast: Callable[[int], Records], example: Tensors
    ) -> tuple[dict[int, ClientUpdate], Tensors]:
        """The replies that came, without their numbers, and the sum of these, in the form of
        `example`."""
        ring = Ring(example)

        def added(content: RecordDict, task: Task) -> ClientUpdate:
            reply = codec.read_reply(content, task)
            if isinstance(reply, ClientFailure):
                raise ProtocolError(reply.reason)
            check_like(reply.weights, example, "reply")
            ring.add(reply.weights)
            return replace(reply, weights={})

        told = self._step("keys", {one: {} for one in cohort}, "keys", KEYS_BYTES)
        directory = {one: told[one][one] for one in told}
        listed = {"directory": codec.table(directory)}
        dealt = self._step("shares", dict.fromkeys(directory, listed), "sealed", SEALED_BYTES, told)
        relayed = {to: {one: dealt[one][to] for one in dealt if one != to} for to in dealt}
        questions = {to: {**broadcast(to), "relayed": codec.table(relayed[to])} for to in dealt}
        replies = self._enough("train", questions, added)
        came = {"survivors": codec.table(dict.fromkeys(replies, b""))}
        shares = self._step("unmask", dict.fromkeys(replies, came), "revealed", SHARE_BYTES, dealt)
        self._unmask(ring, directory, replies, shares)
        return replies, ring.tensors()

    def _unmask(
        self,
        ring: Ring,
        directory: Directory,
        replies: Collection[int],
        shares: Mapping[int, Mapping[int, bytes]],
    ) -> None:
        needed = list(shares)[: self.form.survivors]
        for one in shares[needed[0]]:
            secret = joined({holder: shares[holder][one] for holder in needed})
            keys = Keys.of(directory[one])
            if public(secret) != (keys.own if one in replies else keys.pairs):
                raise ProtocolError("secure aggregation ended: a client revealed wrong shares")
            if one in replies:
                ring.mask(own_mask(secret), -1)
                continue
            for other in replies:
                ring.mask(pair_mask(self.task, secret, directory[other]), -sign(other, one))

    def _step(
        self,
        name: str,
        questions: Mapping[int, Records],
        table: str,
        length: int,
        clients: Collection[int] = (),
    ) -> dict[int, dict[int, bytes]]:
        """The tables that clients answer with: of these clients, or of the one that answers. The
        shares that a client deals are for all others."""

        def read(content: RecordDict, task: Task) -> dict[int, bytes]:
            wanted = {*clients} - ({task.client} if name == "shares" else set())
            return codec.read_rows(content, task, table, length, wanted or {task.client})

        return self._enough(f"query.{name}", questions, read)

    def _enough(self, kind: str, questions: Mapping[int, Records], read: Read) -> dict[int, Any]:
        found = self.ask(kind, questions, read)
        if len(found) < self.form.survivors:
            raise ProtocolError(
                f"secure aggregation ended at its step {kind.removeprefix('query.')!r}: "
                f"{len(found)} of {len(questions)} clients took it, and a sum needs "
                f"{self.form.survivors}"
            )
        return found
