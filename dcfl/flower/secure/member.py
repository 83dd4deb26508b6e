"""A client's half of secure aggregation. A step that it does not expect, it does not take.

What it has to keep from step to step is in a private file, which each step takes away before it
does anything: no step can be taken twice, by however many processes. So nobody gets two replies
under the same masks, or both kinds of share of one client.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from flwr.app import RecordDict
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.secure.masking import (
    SECRET_BYTES,
    SHARE_BYTES,
    Ring,
    agreed,
    digest,
    new_key,
    public,
    seal,
    split_secret,
    unseal,
)
from dcfl.flower.site_failures import Refusal
from dcfl.messages import ClientUpdate
from dcfl.server.fixed_point import FixedPoint

KEYS_BYTES = 2 * SECRET_BYTES  # of a client's public keys: for sealing, then for masking
SHARES_BYTES = 2 * SHARE_BYTES  # of its seed, then of its masking key
SEALED_BYTES = SHARES_BYTES + 16
Directory = Mapping[int, bytes]  # the public keys of a round's clients


@dataclass(frozen=True)
class Secrets:
    """What a client keeps until the next step."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    awaits: str
    round: int
    sealing: bytes  # private keys
    masking: bytes
    seed: bytes = b""
    directory: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)  # that it holds, by whose they are


@dataclass(frozen=True)
class Member:
    memories: NodeMemories
    form: FixedPoint
    task: Task

    def keys(self) -> RecordDict:
        own = Secrets("shares", self.task.round, new_key(), new_key())
        self._keep(own)
        keys = public(own.sealing) + public(own.masking)
        return codec.message(self.task, keys=codec.table({self.task.client: keys}))

    def deal(self, content: RecordDict) -> RecordDict:
        """Shares for everybody who has keys."""
        own, me = self._take("shares"), self.task.client
        directory = codec.read_table(content, "directory", KEYS_BYTES)
        self._require_enough(len(directory))
        mine = public(own.sealing) + public(own.masking)
        if directory.get(me) != mine or len({*directory.values()}) < len(directory):
            raise Refusal.SUM_OF_STRANGERS.error()
        seed = secrets.token_bytes(SECRET_BYTES)
        needed = self.form.survivors
        of_seed = split_secret(seed, directory, needed)
        of_key = split_secret(own.masking, directory, needed)
        shares = {to: of_seed[to] + of_key[to] for to in directory}
        about = described(directory)
        sealed = {
            to: seal(self._sealing_key(own, directory, me, to), shares[to], about)
            for to in directory
            if to != me
        }
        self._keep(
            replace(own, awaits="train", seed=seed, directory=directory, shares={me: shares[me]})
        )
        commitment = codec.table({me: digest(seed)})
        return codec.message(self.task, sealed=codec.table(sealed), commitment=commitment)

    def opened(self, content: RecordDict) -> Secrets:
        """Before it trains: the shares of all others that will be in the sum, or else lost."""
        own, me = self._take("train"), self.task.client
        relayed = codec.read_table(content, "relayed", SEALED_BYTES)
        self._require_enough(len({*relayed, me}))
        if me in relayed or not relayed.keys() <= own.directory.keys():
            raise Refusal.SUM_OF_STRANGERS.error()
        about, shares = described(own.directory), dict(own.shares)
        for sender, sealed in relayed.items():
            key = self._sealing_key(own, own.directory, sender, me)
            shares[sender] = unseal(key, sealed, about)
        own = replace(own, awaits="unmask", shares=shares)
        self._keep(own)
        return own

    def masked(self, own: Secrets, reply: ClientUpdate) -> ClientUpdate:
        ring, me = Ring(reply.weights), self.task.client
        ring.add(reply.weights)
        ring.mask(own.seed, 1)
        for other in sorted(own.shares.keys() - {me}):
            seed = mask_seed(self.task, own.masking, own.directory[other])
            ring.mask(seed, sign(me, other))
        return replace(reply, weights=ring.tensors(), metrics={})

    def reveal(self, content: RecordDict) -> RecordDict:
        """One share of each client: of its seed if its reply is in the sum, of its key if not."""
        own, me = self._take("unmask"), self.task.client
        survivors = codec.read_table(content, "survivors", 0)
        self._require_enough(len(survivors))
        if me not in survivors or not survivors.keys() <= own.shares.keys():
            raise Refusal.SUM_OF_STRANGERS.error()
        revealed = {
            of: both[:SHARE_BYTES] if of in survivors else both[SHARE_BYTES:]
            for of, both in own.shares.items()
        }
        return codec.message(self.task, revealed=codec.table(revealed))

    def _sealing_key(self, own: Secrets, directory: Directory, sender: int, to: int) -> bytes:
        other = directory[sender if to == self.task.client else to][:SECRET_BYTES]
        purpose = f"share {self.task.run} {self.task.round} {sender} {to}"
        return agreed(own.sealing, other, purpose)

    def _require_enough(self, clients: int) -> None:
        if clients < self.form.survivors:
            raise Refusal.SUM_OF_FEW.error(found=clients, needed=self.form.survivors)

    def _keep(self, own: Secrets) -> None:
        self.memories.keep_secrets(self.task, _adapter().dump_json(own).decode())

    def _take(self, step: str) -> Secrets:
        try:
            own: Secrets = _adapter().validate_json(self.memories.take_secrets(self.task))
        except ValidationError:
            raise Refusal.SUM_STEP.error() from None
        if (own.awaits, own.round) != (step, self.task.round):
            raise Refusal.SUM_STEP.error()
        return own


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Secrets)


def described(directory: Directory) -> bytes:
    """Sealed into every share: clients that were told different keys cannot read each other's."""
    return digest(*(str(one).encode() + directory[one] for one in sorted(directory)))


def mask_seed(task: Task, own: bytes, other: bytes) -> bytes:
    """Of the mask that two clients share, from the private key of one."""
    return agreed(own, other[SECRET_BYTES:], f"mask {task.run} {task.round}")


def sign(own: int, other: int) -> int:
    """With which a client applies the mask that it shares with another one; the sum has none."""
    return 1 if own < other else -1
