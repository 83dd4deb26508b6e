"""A grid without a network: every message becomes bytes and back, and client apps are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as Encoded
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from dcfl.engines.engine import Session
from dcfl.engines.placement import Placement
from dcfl.engines.runner import ClientRunner
from dcfl.experiment import Experiment, FederationSettings
from dcfl.flower import engine as grid_engine
from dcfl.flower import messenger, nodes, quorum, site_evaluation
from dcfl.flower.client_app import Site, client_app
from dcfl.flower.engine import GridEngine
from dcfl.flower.node_memories import NodeMemories
from dcfl.flower.roster import Roster

# Outside a run Flower makes no messages.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def over_the_wire(message: Message) -> Message:
    encoded = message_to_proto(message).SerializeToString()
    return message_from_proto(Encoded.FromString(encoded))


class Clock:
    """Instead of `time`, for code that waits: time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-6)
        assert self.now < 10**6, "somebody waits forever"

    def rule(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        """Over all that waits for Flower."""
        for module in (messenger, nodes, quorum, grid_engine, site_evaluation):
            monkeypatch.setattr(module, "time", self)
        return self


class InProcessGrid(Grid):
    """Nodes 100, 101, ... whose client app runs when the reply is asked for."""

    def __init__(self, app: ClientApp, nodes: int, run_config: dict[str, Any] | None = None):
        self.app = app
        self.contexts = {
            100 + own: Context(
                1,
                100 + own,
                {"partition-id": own, "num-partitions": nodes},
                RecordDict(),
                run_config or {},
            )
            for own in range(nodes)
        }
        self.keys: dict[int, bytes] = {}  # public, by node id
        self.waiting: dict[str, Message] = {}
        self.replies: dict[str, Message] = {}  # that have not been handed over yet
        self.tamper: Callable[[Message], Message | None] = lambda reply: reply

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return Message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def get_nodes(self) -> Iterable[Any]:
        return [NodeInfo(node_id=node, public_key=self.keys.get(node)) for node in self.contexts]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            self.waiting[ids[-1]] = over_the_wire(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for message_id in message_ids:
            if message_id in self.waiting:
                message = self.waiting.pop(message_id)
                context = self.contexts[message.metadata.dst_node_id]
                self.replies[message_id] = self.app(message, context)
            if message_id in self.replies:
                reply = self.tamper(self.replies[message_id])
                if reply is not None:  # else: not yet
                    del self.replies[message_id]
                    found.append(over_the_wire(reply))
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))


def engine_at(
    grid: Grid, runner: ClientRunner, roster: Roster, deadline: float = 0.0, run: str = "a" * 32
) -> GridEngine:
    """An engine without a run around it."""
    experiment = Experiment(federation=FederationSettings(deadline=deadline))
    placement = Placement([torch.device("cpu")], "for a test")
    session = Session(run, experiment, runner, placement, Path("never used"))
    return GridEngine(session, grid, roster)


def in_process(
    nodes: int, prepare: Callable[[InProcessGrid], None] = lambda grid: None, **engine: Any
) -> Callable[[Session], Any]:
    """For Run(connect=...). `prepare` the grid before it is used: a reply may be tampered with."""

    @contextmanager
    def connect(session: Session) -> Iterator[GridEngine]:
        site = Site(
            session.runner, NodeMemories(session.memories), session.experiment.engine.threads
        )
        grid = InProcessGrid(client_app(lambda context, task: site), nodes)
        connect.grid = grid  # type: ignore[attr-defined]
        prepare(grid)
        yield GridEngine(session, grid, Roster(nodes), **engine)

    return connect
