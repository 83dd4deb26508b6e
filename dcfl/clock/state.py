"""What the server remembers of the clock from one step of its model to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from pydantic import Field

from dcfl.messages import Broadcast
from dcfl.system.json_types import Count, Number, Seconds, Text


class Flight(NamedTuple):
    """A client's visit, from the server's message to the reply's arrival."""

    ended: Seconds  # virtual, as all times here
    client: Count
    round: Count  # whose model the client got
    began: Seconds
    lost: Text = ""  # why no reply comes; it ends when the server learns of that
    late: Annotated[bool, Field(strict=True)] = False  # the server no longer waits


class Known(NamedTuple):
    """What the server learned from a client's last reply, for choosing clients."""

    round: Count
    loss: Number  # mean over its training
    examples: Count
    seconds: Seconds  # of its visit


@dataclass(frozen=True)
class ClockState:
    now: Seconds = 0.0
    flights: tuple[Flight, ...] = ()  # of clients at work
    known: Mapping[int, Known] = field(default_factory=dict)  # of clients that replied
    sent: Mapping[int, Broadcast] = field(default_factory=dict)  # by round, what `flights` got
