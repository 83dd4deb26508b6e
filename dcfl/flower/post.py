"""Messages to Flower's nodes, what becomes of each, and who the nodes are."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from dcfl.errors import NetworkError, ProtocolError
from dcfl.flower import codec
from dcfl.flower.codec import Task

JOIN_SECONDS = 120  # for all nodes to come up and say who they are
MEET_SECONDS = 60  # for one that comes up later
AGAIN_SECONDS = 300  # until a node that could not be used is asked again
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
        self, kind: str, addressed: Iterable[tuple[int, RecordDict]], seconds: float
    ) -> list[str | None]:
        """The id of each message, None for one that was not taken; given up after `seconds`."""
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=seconds or LONGEST)
            for node, content in addressed
        ]
        ids = list(self._grid.push_messages(messages)) if messages else []
        return [message or None for message in ids] + [None] * (len(messages) - len(ids))

    def collect(self, ids: Collection[str]) -> dict[str, RecordDict | Lost]:
        """The replies to these messages that are there, by the message's id: a dead node's error
        comes from the SuperLink, not from the node."""
        if not self._alive():
            raise NetworkError("Flower has ended, and with it all replies")
        found: dict[str, RecordDict | Lost] = {}
        for reply in self._grid.pull_messages(list(ids)) if ids else ():
            code = reply.error.code if reply.has_error() else None
            found[reply.metadata.reply_to_message_id] = (
                reply.content if code is None else Lost(FATES.get(code, f"Flower's error {code}"))
            )
        return found

    def ask(
        self, kind: str, addressed: Sequence[tuple[int, RecordDict]], seconds: float
    ) -> dict[int, RecordDict | Lost]:
        """Send and wait for the replies, by node; a node that does not answer is not in it."""
        ids = self.send(kind, addressed, seconds)
        waiting = {
            message: node
            for message, (node, _) in zip(ids, addressed, strict=True)
            if message is not None
        }
        found: dict[int, RecordDict | Lost] = {}
        end = time.monotonic() + seconds
        while waiting and time.monotonic() < end:
            for message, reply in self.collect(list(waiting)).items():
                found[waiting.pop(message)] = reply
            time.sleep(0.05)
        return found


class Nodes:
    """Which node each client lives with: client % nodes is the node's partition id."""

    def __init__(self, post: Post, run: str, count: int = 0) -> None:
        """`count`: of the nodes that there will be; 0: what they say themselves."""
        self._post, self._task, self._count = post, Task(run, 0, 0), count
        self._ids: dict[int, int] = {}  # by partition id
        self._unfit: dict[int, tuple[float, str]] = {}  # by node id: when it was asked, and why
        self._join()

    def __len__(self) -> int:
        return self._count

    def of(self, client: int) -> int | None:
        return self._ids.get(client % self._count)

    def online(self) -> dict[int, int]:
        """Node ids by partition id."""
        return dict(sorted(self._ids.items()))

    def refresh(self, seconds: float = MEET_SECONDS) -> None:
        """Forget the nodes that have gone, and ask new ones who they are."""
        there = self._post.node_ids()
        self._ids = {own: node for own, node in self._ids.items() if node in there}
        known = set(self._ids.values())
        tired = time.monotonic() - AGAIN_SECONDS
        known |= {node for node, (asked, _) in self._unfit.items() if asked > tired}
        content = codec.task_content(self._task)
        new = [(node, content) for node in sorted(there - known)]
        for node, reply in self._post.ask("query.whoami", new, seconds).items():
            try:
                self._admit(node, reply)
            except ProtocolError as error:
                self._unfit[node] = time.monotonic(), str(error)

    def _join(self) -> None:
        end = time.monotonic() + JOIN_SECONDS
        while not self._ids or len(self._ids) < self._count:
            left = end - time.monotonic()
            if left < 0:
                break
            self.refresh(left)
            if len(self._ids) < self._count and self._unfit:
                break  # it will not get better by waiting
            time.sleep(0.05)
        if not self._ids:
            reasons = sorted({reason for _, reason in self._unfit.values()})
            raise NetworkError(
                f"no node can be used: {'; '.join(reasons)}"
                if reasons
                else f"no node has come up within {JOIN_SECONDS} s"
            )

    def _admit(self, node: int, reply: RecordDict | Lost) -> None:
        if isinstance(reply, Lost):
            raise ProtocolError(reply.reason)
        own, count = codec.read_node(reply, self._task)
        if own in self._ids:
            raise ProtocolError(f"two nodes have the partition-id {own}")
        if self._count not in (0, count):
            raise ProtocolError(
                f"a node counts {count} of them (num-partitions) and another {self._count}"
            )
        self._count = count
        self._ids[own] = node
        self._unfit.pop(node, None)
