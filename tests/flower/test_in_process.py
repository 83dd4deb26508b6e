"""Flower is where the other tests of this folder think, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import serde
from flwr.proto.message_pb2 import Message as Encoded
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from dcfl.flower import codec
from tests.flower.in_process import InProcessGrid, over_the_wire


@pytest.mark.parametrize("field", ["run_id", "node_id", "task_id"])
def test_flower_takes_its_identity_from_where_it_is_set(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(vars(type(TaskIdentity))[field], property)
    assert getattr(TaskIdentity, field) == 1
    monkeypatch.setattr(TaskIdentity, f"_{field}", None)
    with pytest.raises(RuntimeError, match=field):
        Message(RecordDict(), dst_node_id=2, message_type="train")


def test_a_message_becomes_bytes_and_back() -> None:
    content = RecordDict(
        {"task": ConfigRecord({"round": 3}), "weights": codec.encode({"w": torch.ones(3)})}
    )
    message = Message(content, dst_node_id=2, message_type="query.whoami", ttl=5.0)
    encoded = serde.message_to_proto(message).SerializeToString()
    assert isinstance(encoded, bytes)
    again = serde.message_from_proto(Encoded.FromString(encoded))
    for found in (again, over_the_wire(message)):
        assert found.content == content
        assert found.metadata.dst_node_id == 2
        assert found.metadata.message_type == "query.whoami"
        assert found.metadata.ttl == 5.0
        assert found is not message


def test_the_grid_has_all_that_flowers_has_and_sets_message_ids() -> None:
    app = ClientApp()
    app.query("echo")(lambda message, context: Message(message.content, reply_to=message))
    grid = InProcessGrid(app, 2)
    assert isinstance(grid, Grid)
    messages = [
        Message(RecordDict(), dst_node_id=node, message_type="query.echo")
        for node in grid.get_node_ids()
    ]
    ids = list(grid.push_messages(messages))
    assert len({*ids, ""}) == 3
    replies = list(grid.pull_messages(ids))
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.metadata.src_node_id for reply in replies] == [100, 101]
    assert not list(grid.pull_messages(ids))


ROOT = Path(__file__).parents[2]
EMBEDDED = """
from pathlib import Path
from tempfile import TemporaryDirectory
from dcfl.methods import METHODS
from tests.engines.runs import Flat, trained
with TemporaryDirectory() as folder:
    trained(Path(folder), METHODS["fedavg"](), workers=1, rounds=1, model=Flat())
"""


@pytest.mark.parametrize(
    "code",
    ["import dcfl, dcfl.cli.main", EMBEDDED],
    ids=["the command line", "an embedded run"],
)
def test_who_does_not_ask_for_flower_does_not_import_it(code: str) -> None:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    modules = done.stdout.split()
    assert "dcfl" in modules
    assert not [name for name in modules if name.partition(".")[0] in ("flwr", "ray")]
