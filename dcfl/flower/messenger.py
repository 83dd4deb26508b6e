"""Messages to Flower's nodes, and what becomes of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from dcfl.errors import NetworkError

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

    def nodes(self) -> dict[int, bytes]:
        """Who is online: the id that the SuperLink has given out, and the public key that it was
        given out for. With node authentication an id has one key and a key one id, and whoever acts
        as a node has shown the SuperLink, in each of its calls, that it holds the private key."""
        return {node.node_id: node.public_key for node in self._grid.get_nodes()}

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
