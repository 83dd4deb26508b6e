"""Messages to Flower's nodes, and their replies or what came instead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dcfl.errors import NetworkError
from dcfl.flower import codec
from dcfl.flower.app_pin import REFUSED_APP
from dcfl.flower.codec import Task

SECONDS_WITHOUT_DEADLINE = 7 * 24 * 3600.0
EXPIRY_FACTOR = 2.0  # deadlines after which Flower gives up a late message too

# Flower's error codes. Its own texts may contain what a client's exception said.
ERROR_REASONS = {
    0: "its process died",
    1: "its client app cannot be loaded",
    2: "its client app raised an exception",
    3: "the message to it was lost",
    4: "its reply was lost",
    5: "its node went offline",
    7: "its node does not trust the app",
    8: "its client process died",
}


class LostReply(NamedTuple):
    reason: str
    refused: bool = False  # by a decision of the site's


class SentTask(NamedTuple):
    message: str  # its id
    task: Task
    bytes_down: int


class Messenger:
    def __init__(self, grid: Grid, alive: Callable[[], bool] = lambda: True) -> None:
        """`alive`: whether there is still somebody who carries messages."""
        self._grid, self._alive = grid, alive
        # How far a node's own record goes: lines, and the hash of the last.
        self.records: dict[int, tuple[int, str]] = {}
        self.rewound: set[int] = set()  # nodes whose record has become shorter
        self._asked: dict[str, tuple[int, int]] = {}  # node, and lines when it was asked

    def nodes(self) -> dict[int, bytes]:
        """Who is online: ids that the SuperLink has given out, each with its public key. With node
        authentication an id has one key and a key one id, and in each of its calls a node has
        proved to the SuperLink that it holds the private key."""
        return {node.node_id: node.public_key for node in self._grid.get_nodes()}

    def send_tasks(
        self,
        kind: str,
        tasks: Sequence[tuple[int, Task]],
        deadline: float,
        **records: ArrayRecord | ConfigRecord,
    ) -> list[SentTask]:
        """To each node its task, and the records to all; returns those that were taken."""
        ttl = EXPIRY_FACTOR * deadline or SECONDS_WITHOUT_DEADLINE
        contents = [codec.message(task, **records) for _, task in tasks]
        messages = [
            Message(content, dst_node_id=node, message_type=kind, ttl=ttl)
            for content, (node, _) in zip(contents, tasks, strict=True)
        ]
        ids = list(self._grid.push_messages(messages) or ()) if messages else []
        sent = []
        for message, content, (node, task) in zip(ids, contents, tasks, strict=False):
            if message:
                self._asked[message] = (node, self.records.get(node, (0, ""))[0])
                sent.append(SentTask(message, task, codec.num_bytes(content)))
        return sent

    def collect(self, message: str) -> RecordDict | LostReply | None:
        """The reply to a message, if it has come.

        One at a time: a reply that Flower cannot read would take the others with it. The message
        asked for tells whose reply it is: what a reply says of itself may be forged, and the error
        for a dead node comes from the SuperLink.
        """
        if not self._alive():
            raise NetworkError("Flower has ended, and with it all replies")
        try:
            replies = list(self._grid.pull_messages([message]))
        except (httpx.HTTPError, OSError) as error:
            raise NetworkError(f"the SuperLink does not answer: {error}") from error
        except Exception:  # the client's bytes may cause any
            return LostReply("its reply cannot be read")
        if not replies:
            return None
        reply = replies[0]
        if reply.metadata.reply_to_message_id != message:
            return LostReply("its reply answers something else")
        if reply.has_error():
            code, reason = reply.error.code, reply.error.reason or ""
            if REFUSED_APP.fullmatch(reason):  # the site's own word, of which nothing is free
                return LostReply(reason, refused=True)
            return LostReply(ERROR_REASONS.get(code, f"Flower's error {code}"))
        self._note(message, reply.content)
        return reply.content

    def _note(self, message: str, answer: RecordDict) -> None:
        node, lines = self._asked.pop(message, (0, 0))
        if (record := codec.read_record(answer)) is not None:
            self.rewound |= {node} if record[0] <= lines else set()
            self.records[node] = max(record, self.records.get(node, (0, "")))

    def wait_for(self, message: str, end: float) -> RecordDict | LostReply | None:
        """The reply, or None when the time is over; it is asked for once in any case."""
        began = time.monotonic()
        while (reply := self.collect(message)) is None:
            now = time.monotonic()
            if now >= end:
                break
            # Often at first: in a simulation a client may take milliseconds.
            time.sleep(min(0.005 + (now - began) / 50, 0.25, end - now))
        return reply
