"""Who the nodes are: which of them holds which clients.

A node is believed as far as it agrees with what the operator says (`Roster`); what it says
otherwise is refused, and a person is told.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from flwr.app import RecordDict

from dcfl.errors import NetworkError, ProtocolError
from dcfl.flower import codec
from dcfl.flower.codec import Claim, Task
from dcfl.flower.key_fingerprints import registered_fingerprint
from dcfl.flower.post import Lost, Post
from dcfl.flower.roster import Roster

JOIN_SECONDS = 120  # for all nodes to come up and say who they are
AGAIN_SECONDS = 120  # until a node that could not be used, or did not answer, is asked again
MOST_NOTICES = 50  # strangers may be many


class Nodes:
    """Which node each client lives with: client % sites is the node's partition id."""

    def __init__(self, post: Post, run: str, roster: Roster, classes: int) -> None:
        self._post, self._run, self._classes, self.roster = post, run, classes, roster
        self._held: dict[int, int] = {}  # node ids by partition id
        self._next: dict[int, int] = {}  # the same: without keys, who takes over
        self._keys: dict[int, str] = {}  # fingerprints by node id, of those online
        self._asked: dict[int, tuple[float, str | None, Task]] = {}  # when, by which message
        self._trouble: dict[int, str] = {}  # by node id: why it cannot be used
        self.images: dict[int, list[int]] = {}  # test images by partition id, as first declared
        self.notices: list[str] = []  # what a person should know of
        self._join()

    def of(self, client: int) -> int | None:
        return self._held.get(client % self.roster.count)

    def absence(self, client: int) -> str:
        """Why nobody can be asked to train the client."""
        place = client % self.roster.count
        reasons = {
            why
            for node, why in self._trouble.items()
            if not self.roster.keys or self._place_of(node) == place
        }
        if not reasons:
            return "its node is not online"
        told = "; ".join(sorted(reasons))
        return told if self.roster.keys else f"its node is not online, or cannot be used: {told}"

    def online(self) -> dict[int, int]:
        """Node ids by partition id."""
        return dict(sorted(self._held.items()))

    def tell(self, notice: str) -> None:
        """Once, and not without end."""
        if notice not in self.notices and len(self.notices) < MOST_NOTICES:
            last = len(self.notices) == MOST_NOTICES - 1
            self.notices.append("more of this kind, which are not shown" if last else notice)

    def refresh(self) -> None:
        """Forget the nodes that have gone, ask new ones who they are, and hear what they say.
        Nobody is waited for."""
        there = self._post.nodes()
        self._keys = {node: registered_fingerprint(key) for node, key in there.items()}
        self._forget_all_but(there.keys())
        for place in [place for place in self._next if place not in self._held]:
            self._held[place] = self._next.pop(place)
        strangers = there.keys() - {*self._held.values(), *self._next.values()}
        self._ask([node for node in sorted(strangers) if self._is_invited(node)])
        for node, (when, message, task) in list(self._asked.items()):
            reply = self._post.collect(message) if message else None
            if reply is not None:
                self._asked[node] = when, None, task
                self._hear(node, reply, task)

    def _forget_all_but(self, there: Collection[int]) -> None:
        for places in (self._held, self._next):
            for place in [place for place, node in places.items() if node not in there]:
                del places[place]
        # With a key of its own a node comes back under the same id, and is asked again at once.
        self._asked = {node: asked for node, asked in self._asked.items() if node in there}
        self._trouble = {node: why for node, why in self._trouble.items() if node in there}

    def _is_invited(self, node: int) -> bool:
        """With keys, nobody else is even asked."""
        if self.roster.keys and self._place_of(node) is None:
            self.tell(f"{self._who(node)} is not one of this run's sites: it gets nothing")
            return False
        return True

    def _place_of(self, node: int) -> int | None:
        return self.roster.place_of(self._keys.get(node, ""))

    def _who(self, node: int) -> str:
        return f"node {node} (key {self._keys.get(node) or 'unreadable'})"

    def _ask(self, strangers: Sequence[int]) -> None:
        """Not all the time: one that cannot be used may be mended."""
        now = time.monotonic()
        due = {
            node: Task(self._run, 0, 0).ticketed()
            for node in strangers
            if node not in self._asked or now > self._asked[node][0] + AGAIN_SECONDS
        }
        addressed = [(node, codec.task_content(task)) for node, task in due.items()]
        ids = self._post.send("query.whoami", addressed, AGAIN_SECONDS)
        for (node, task), message in zip(due.items(), ids, strict=True):
            self._asked[node] = now, message, task

    def _hear(self, node: int, reply: RecordDict | Lost, task: Task) -> None:
        try:
            if isinstance(reply, Lost):
                raise ProtocolError(reply.reason)
            claim = codec.read_claim(reply, task, self._classes)
            self._check(node, claim)
        except ProtocolError as error:
            self._trouble[node] = str(error)
            self.tell(f"{self._who(node)} cannot be used: {error}")
            return
        self._trouble.pop(node, None)
        self.images.setdefault(claim.partition, claim.images)
        first = self._held.setdefault(claim.partition, node)
        if first != node:
            self._next[claim.partition] = node
            self.tell(
                f"two nodes claim partition-id {claim.partition}: {self._who(first)}, which came "
                f"first, has its clients; {self._who(node)} gets nothing while that is online"
            )

    def _check(self, node: int, claim: Claim) -> None:
        """Against what the operator says."""
        if claim.partitions != self.roster.count:
            raise ProtocolError(
                f"its node config says num-partitions={claim.partitions}, "
                f"and this run has {self.roster.count} sites"
            )
        place = self._place_of(node)
        if place is not None and place != claim.partition:
            raise ProtocolError(
                f"its node config says partition-id={claim.partition}, "
                f"and its key is that of {self.roster.title(place)}"
            )

    def _join(self) -> None:
        """Wait until all sites are known, or will not be."""
        end = time.monotonic() + JOIN_SECONDS
        while len(self._held) < self.roster.count and time.monotonic() <= end:
            self.refresh()
            if self._all_heard():
                break
            time.sleep(0.05)
        if not self._held:
            reasons = "; ".join(sorted({*self._trouble.values()}))
            raise NetworkError(
                f"no node can be used: {reasons}"
                if reasons
                else f"no node has come up within {JOIN_SECONDS} s"
            )

    def _all_heard(self) -> bool:
        """Has each site either joined or told why it cannot? Without keys a node in trouble may
        stand for any of them."""
        if self.roster.keys:
            failed = {self._place_of(node) for node in self._trouble}
            return len(failed | self._held.keys()) >= self.roster.count
        return len(self._held) + len(self._trouble) >= self.roster.count
