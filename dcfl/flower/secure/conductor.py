"""The server's half of secure aggregation. A step that fails ends the round without a sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from dcfl.errors import ClientFailure, ProtocolError
from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.secure.masking import SECRET_BYTES, SHARE_BYTES, Ring, digest, joined, public
from dcfl.flower.secure.member import KEYS_BYTES, SEALED_BYTES, mask_seed, sign
from dcfl.messages import ClientUpdate, Tensors
from dcfl.server.fixed_point import FixedPoint
from dcfl.server.validation import check_like

Records = Mapping[str, ArrayRecord | ConfigRecord]
Read = Callable[[RecordDict, Task], Any]
# A message of a kind to each client: what was read of the answers, without clients that are lost.
Ask = Callable[[str, Mapping[int, Records], Read], dict[int, Any]]


class Dealt(NamedTuple):
    sealed: Mapping[int, bytes]  # shares, by whom they are for
    commitment: bytes  # to the seed


@dataclass(frozen=True)
class Conductor:
    form: FixedPoint
    task: Task  # of the round, of no client
    ask: Ask

    def run(
        self,
        cohort: Collection[int],
        broadcast: Callable[[int], Records],
        example: Tensors,
    ) -> tuple[dict[int, ClientUpdate], Tensors]:
        """The masked replies that came, and the sum of what is behind the masks, in the form of
        `example`."""
        keys = self._step("keys", {one: {} for one in cohort}, self._read_keys)
        told = {"directory": codec.table(keys)}
        dealt = self._step("shares", dict.fromkeys(keys, told), self._dealt_to(keys))
        ring = Ring(example)

        def added(content: RecordDict, task: Task) -> ClientUpdate:
            reply = codec.read_reply(content, task)
            if isinstance(reply, ClientFailure):
                raise ProtocolError(reply.reason)
            check_like(reply.weights, example, "reply")
            ring.add(reply.weights)
            return replace(reply, weights={})

        questions = {one: {**broadcast(one), **self._relayed(dealt, one)} for one in dealt}
        replies = self._step("train", questions, added)
        survivors = {"survivors": codec.table(dict.fromkeys(replies, b""))}
        revealed = self._step("unmask", dict.fromkeys(replies, survivors), self._revealed_of(dealt))
        for one in dealt:
            needed = list(revealed)[: self.form.survivors]
            secret = joined({holder: revealed[holder][one] for holder in needed})
            if one in replies:
                _require_same(digest(secret), dealt[one].commitment)
                ring.mask(secret, -1)
                continue
            _require_same(public(secret), keys[one][SECRET_BYTES:])
            for other in replies:
                ring.mask(mask_seed(self.task, secret, keys[other]), -sign(other, one))
        return replies, ring.tensors()

    def _step(self, name: str, questions: Mapping[int, Records], read: Read) -> dict[int, Any]:
        kind = name if name == "train" else f"query.{name}"
        found = self.ask(kind, questions, read)
        if len(found) < self.form.survivors:
            raise ProtocolError(
                f"secure aggregation ended at its step {name!r}: {len(found)} of "
                f"{len(questions)} clients took it, and a sum needs {self.form.survivors}"
            )
        return found

    def _read_keys(self, content: RecordDict, task: Task) -> bytes:
        return codec.read_own(content, task, "keys", KEYS_BYTES)

    def _dealt_to(self, keys: Collection[int]) -> Read:
        def read(content: RecordDict, task: Task) -> Dealt:
            commitment = codec.read_own(content, task, "commitment", SECRET_BYTES)
            sealed = codec.read_table(content, "sealed", SEALED_BYTES)
            if sealed.keys() != {*keys} - {task.client}:
                raise ProtocolError("shares that are not for all others")
            return Dealt(sealed, commitment)

        return read

    def _relayed(self, dealt: Mapping[int, Dealt], to: int) -> Records:
        sealed = {one: dealt[one].sealed[to] for one in dealt if one != to}
        return {"relayed": codec.table(sealed)}

    def _revealed_of(self, dealt: Collection[int]) -> Read:
        def read(content: RecordDict, task: Task) -> dict[int, bytes]:
            codec.check_answer(content, task)
            revealed = codec.read_table(content, "revealed", SHARE_BYTES)
            if revealed.keys() != {*dealt}:
                raise ProtocolError("shares that are not of all clients")
            return revealed

        return read


def _require_same(found: bytes, promised: bytes) -> None:
    if found != promised:
        raise ProtocolError("secure aggregation ended: a client dealt or revealed wrong shares")
