"""Messages to Flower's nodes, what becomes of each, and who the nodes are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from dcfl.errors import NetworkError, ProtocolError
from dcfl.flower import codec
from dcfl.flower.codec import Task

JOIN_SECONDS = 120  # for all nodes to come up and say who they are
AGAIN_SECONDS = 120  # until a node that could not be used, or did not answer, is asked again
LONGEST = 7 * 24 * 3600.0  # seconds that a message without a deadline may take

# Flower's error codes, in our words. Its own texts may hold what a client's exception said.
FATES = {
    0: "its process died",
    1: "its client app cannot be loaded",
    2: "its client app raised an exception",
    3: "the message to it was lost",
    4: "its reply was lost",
    5: "its node went offline",
    7: "its node does not trust the app",
    8: "its client process died",
}


class Lost(NamedTuple):
    """What came instead of a reply."""

    reason: str


class Post:
    """Sends and collects; nothing waits here."""

    def __init__(self, grid: Grid, alive: Callable[[], bool] = lambda: True) -> None:
        """`alive`: whether there is still somebody who carries messages."""
        self._grid, self._alive = grid, alive

    def node_ids(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def send(
        self, kind: str, addressed: Sequence[tuple[int, RecordDict]], seconds: float
    ) -> list[str | None]:
        """The id of each message, None for one that was not taken; given up after `seconds`."""
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=seconds or LONGEST)
            for node, content in addressed
        ]
        ids = list(self._grid.push_messages(messages) or ()) if messages else []
        return [message or None for message in ids] + [None] * (len(messages) - len(ids))

    def collect(self, message: str) -> RecordDict | Lost | None:
        """The reply to a message, if it is there.

        One at a time: a reply that Flower cannot read would take the others with it. Whose reply it
        is, is known by what was asked for: what it says of itself may be forged, and a dead node's
        error comes from the SuperLink.
        """
        if not self._alive():
            raise NetworkError("Flower has ended, and with it all replies")
        try:
            replies = list(self._grid.pull_messages([message]))
        except (httpx.HTTPError, OSError) as error:
            raise NetworkError(f"the SuperLink does not answer: {error}") from error
        except Exception:  # it was made of the client's bytes
            return Lost("its reply cannot be read")
        if not replies:
            return None
        reply = replies[0]
        if reply.metadata.reply_to_message_id != message:
            return Lost("its reply answers something else")
        if reply.has_error():
            code = reply.error.code
            return Lost(FATES.get(code, f"Flower's error {code}"))
        return reply.content

    def ask(self, kind: str, addressed: Sequence[tuple[int, RecordDict]], seconds: float) -> None:
        """Send, and wait until all have answered or the time is over."""
        waiting = {message for message in self.send(kind, addressed, seconds) if message}
        end = time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            waiting = {message for message in waiting if self.collect(message) is None}
            time.sleep(0.05)


class Nodes:
    """Which node each client lives with: client % nodes is the node's partition id."""

    def __init__(self, post: Post, run: str, count: int = 0) -> None:
        """`count`: of the nodes that there will be; 0: what they say themselves."""
        self._post, self._task, self._count = post, Task(run, 0, 0), count
        self._ids: dict[int, int] = {}  # by partition id
        self._spare: dict[int, int] = {}  # the same: a node that was restarted, perhaps
        self._asked: dict[int, tuple[float, str | None]] = {}  # by node id: when, by which message
        self._trouble: dict[int, str] = {}  # by node id: why it cannot be used
        self._join()

    def of(self, client: int) -> int | None:
        return self._ids.get(client % self._count)

    def online(self) -> dict[int, int]:
        """Node ids by partition id."""
        return dict(sorted(self._ids.items()))

    def refresh(self) -> None:
        """Forget the nodes that have gone, ask new ones who they are, and hear what they say.
        Nobody is waited for."""
        there = self._post.node_ids()
        for known in (self._ids, self._spare):
            for own in [own for own, node in known.items() if node not in there]:
                del known[own]
        for own in [own for own in self._spare if own not in self._ids]:
            self._ids[own] = self._spare.pop(own)
        self._ask(sorted(there - {*self._ids.values(), *self._spare.values()}))
        for node, (when, message) in list(self._asked.items()):
            reply = self._post.collect(message) if message else None
            if reply is not None:
                self._asked[node] = when, None
                try:
                    self._admit(node, reply)
                except ProtocolError as error:
                    self._trouble[node] = str(error)

    def _ask(self, strangers: Sequence[int]) -> None:
        """Not all the time: one that cannot be used may be mended."""
        now = time.monotonic()
        due = [
            node
            for node in strangers
            if node not in self._asked or now > self._asked[node][0] + AGAIN_SECONDS
        ]
        content = codec.task_content(self._task)
        ids = self._post.send("query.whoami", [(node, content) for node in due], AGAIN_SECONDS)
        self._asked.update((node, (now, message)) for node, message in zip(due, ids, strict=True))

    def _join(self) -> None:
        """Wait until all nodes are known, or will not be."""
        end = time.monotonic() + JOIN_SECONDS
        while not self._ids or len(self._ids) < self._count:
            self.refresh()
            known = len(self._ids) + len(self._trouble)
            if time.monotonic() > end or (self._trouble and known >= max(self._count, 1)):
                break
            time.sleep(0.05)
        if not self._ids:
            reasons = "; ".join(sorted({*self._trouble.values()}))
            raise NetworkError(
                f"no node can be used: {reasons}"
                if reasons
                else f"no node has come up within {JOIN_SECONDS} s"
            )

    def _admit(self, node: int, reply: RecordDict | Lost) -> None:
        if isinstance(reply, Lost):
            raise ProtocolError(reply.reason)
        own, count = codec.read_node(reply, self._task)
        if self._count not in (0, count):
            raise ProtocolError(
                f"a node counts {count} of them (num-partitions) and another {self._count}"
            )
        self._count = count
        self._trouble.pop(node, None)
        if own in self._ids:
            self._spare[own] = node
            raise ProtocolError(f"two nodes have the partition-id {own}")
        self._ids[own] = node
