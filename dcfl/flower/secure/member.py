"""A client's half of secure aggregation. A step that it does not expect, it does not take.

What it has to keep from step to step is in a private file, which each step takes away before it
does anything: no step is taken twice, by however many processes. So nobody gets two replies under
the same masks, or both kinds of share of one client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Self

from flwr.app import RecordDict
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dcfl.flower import codec
from dcfl.flower.codec import Task
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.secure import masking
from dcfl.flower.secure.masking import SECRET_BYTES, SHARE_BYTES, Ring, agreed, split_secret
from dcfl.flower.site_failures import Refusal
from dcfl.messages import ClientUpdate
from dcfl.server.fixed_point import FixedPoint

KEYS_BYTES = 3 * SECRET_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + 16  # a share of the own mask's key, then of that for the pairs
Directory = Mapping[int, bytes]  # the public keys of a round's clients


class Keys(NamedTuple):
    """A client's keys of one round; all private, or all public."""

    sealing: bytes  # of shares
    own: bytes  # its own mask is made of the private one alone
    pairs: bytes  # a mask for each other client, of this one's private and the other's public key

    @classmethod
    def of(cls, row: bytes) -> Self:
        return cls(*(row[at : at + SECRET_BYTES] for at in range(0, KEYS_BYTES, SECRET_BYTES)))

    @property
    def public(self) -> bytes:
        return b"".join(map(masking.public, self))


@dataclass(frozen=True)
class Secrets:
    """What a client keeps until the next step."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    awaits: str
    round: int
    keys: Keys  # private
    directory: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)  # that it holds, by whose they are


@dataclass(frozen=True)
class Member:
    memories: NodeMemories
    form: FixedPoint
    task: Task

    def offer(self, content: RecordDict) -> RecordDict:
        """New keys, and no round but this one any more."""
        keys = Keys(*(masking.new_key() for _ in Keys._fields))
        self._keep(Secrets("shares", self.task.round, keys))
        return codec.message(self.task, keys=codec.table({self.task.client: keys.public}))

    def deal(self, content: RecordDict) -> RecordDict:
        """Shares for everybody who has keys."""
        kept, me = self._take("shares"), self.task.client
        directory = codec.read_table(content, "directory", KEYS_BYTES)
        self._require_enough(len(directory))
        if directory.get(me) != kept.keys.public or len({*directory.values()}) < len(directory):
            raise Refusal.SUM_OF_STRANGERS.error()
        of_own = split_secret(kept.keys.own, directory, self.form.survivors)
        of_pairs = split_secret(kept.keys.pairs, directory, self.form.survivors)
        shares = {to: of_own[to] + of_pairs[to] for to in directory}
        kept = replace(kept, awaits="train", directory=directory, shares={me: shares[me]})
        sealed = {
            to: masking.seal(self._sealing_key(kept, me, to), shares[to], described(directory))
            for to in directory
            if to != me
        }
        self._keep(kept)
        return codec.message(self.task, sealed=codec.table(sealed))

    def opened(self, content: RecordDict) -> Secrets:
        """Before it trains: the shares of all others, whose replies will be in the sum or lost."""
        kept, me = self._take("train"), self.task.client
        relayed = codec.read_table(content, "relayed", SEALED_BYTES)
        self._require_enough(len({*relayed, me}))
        if me in relayed or not relayed.keys() <= kept.directory.keys():
            raise Refusal.SUM_OF_STRANGERS.error()
        about = described(kept.directory)
        opened = {
            sender: masking.unseal(self._sealing_key(kept, sender, me), sealed, about)
            for sender, sealed in relayed.items()
        }
        kept = replace(kept, awaits="unmask", shares={**kept.shares, **opened})
        self._keep(kept)
        return kept

    def masked(self, kept: Secrets, reply: ClientUpdate) -> ClientUpdate:
        ring, me = Ring(reply.weights), self.task.client
        ring.add(reply.weights)
        ring.mask(own_mask(kept.keys.own), 1)
        for other in kept.shares.keys() - {me}:
            ring.mask(pair_mask(self.task, kept.keys.pairs, kept.directory[other]), sign(me, other))
        return replace(reply, weights=ring.tensors(), metrics={})

    def reveal(self, content: RecordDict) -> RecordDict:
        """One share of each client: for its own mask if its reply came, for its pairs' if not."""
        kept, me = self._take("unmask"), self.task.client
        survivors = codec.read_table(content, "survivors", 0)
        self._require_enough(len(survivors))
        if me not in survivors or not survivors.keys() <= kept.shares.keys():
            raise Refusal.SUM_OF_STRANGERS.error()
        revealed = {
            one: both[:SHARE_BYTES] if one in survivors else both[SHARE_BYTES:]
            for one, both in kept.shares.items()
        }
        return codec.message(self.task, revealed=codec.table(revealed))

    def _sealing_key(self, kept: Secrets, sender: int, to: int) -> bytes:
        other = kept.directory[sender if to == self.task.client else to]
        purpose = f"share {self.task.run} {self.task.round} {sender} {to}"
        return agreed(kept.keys.sealing, Keys.of(other).sealing, purpose)

    def _require_enough(self, clients: int) -> None:
        if clients < self.form.survivors:
            raise Refusal.SUM_OF_FEW.error(found=clients, needed=self.form.survivors)

    def _keep(self, kept: Secrets) -> None:
        self.memories.keep_secrets(self.task, _adapter().dump_json(kept).decode())

    def _take(self, step: str) -> Secrets:
        try:
            kept: Secrets = _adapter().validate_json(self.memories.take_secrets(self.task))
        except ValidationError:
            raise Refusal.SUM_STEP.error() from None
        if (kept.awaits, kept.round) != (step, self.task.round):
            raise Refusal.SUM_STEP.error()
        return kept


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(Secrets)


def described(directory: Directory) -> bytes:
    """Sealed into every share: clients that were told different keys cannot read each other's."""
    return masking.digest(*(str(one).encode() + directory[one] for one in sorted(directory)))


def own_mask(key: bytes) -> bytes:
    """The seed of the mask that one client alone can make."""
    return masking.digest(b"own mask", key)


def pair_mask(task: Task, own: bytes, other: bytes) -> bytes:
    """The seed of the mask that two clients share: a private key of one, all keys of the other."""
    return agreed(own, Keys.of(other).pairs, f"mask {task.run} {task.round}")


def sign(own: int, other: int) -> int:
    """With which a client applies the mask that it shares with another one; the sum has none."""
    return 1 if own < other else -1
