"""What clients keep on a node: theirs alone, of the round that is asked for, and nothing else."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from safetensors.torch import save_file
from torch import Tensor

from dcfl.client import Client
from dcfl.errors import DCFLError, ProtocolError
from dcfl.flower import codec
from dcfl.flower.client_app import Site, client_app
from dcfl.flower.codec import Task
from dcfl.flower.node_memories import KEPT_RUNS, NodeMemories
from dcfl.flower.roster import Roster
from dcfl.flower.secure.member import Member
from dcfl.messages import Broadcast
from dcfl.methods import METHODS, Method, Objective
from dcfl.methods.moon import MOON
from dcfl.methods.scaffold import Scaffold
from dcfl.server.fixed_point import FixedPoint
from dcfl.tensors import snapshot
from tests import toys
from tests.engines import runs
from tests.flower.in_process import Clock, InProcessGrid, engine_at
from tests.flower.test_codec import HOSTILE
from tests.flower.test_engine import (
    Tamper,
    error_instead,
    fail,
    flat,
    held_back,
    is_training,
    rows_of,
    trained,
    weights_of,
)

RUN, OTHER = "0123456789abcdef" * 2, "f" * 32
KEEPERS = ["moon", "scaffold"]


def memory(value: float) -> dict[str, Tensor]:
    return {"w": torch.full((3,), value), "kernel": torch.full((2, 3, 1, 2), value)}


def value_of(found: dict[str, Tensor] | None) -> float:
    assert found is not None
    return float(found["w"][0])


def pipe(path: Path) -> None:
    """In place of a file."""
    path.unlink()
    os.mkfifo(path)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def memories(tmp_path: Path) -> NodeMemories:
    return NodeMemories(tmp_path / "deep" / "memories")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().rule(monkeypatch)


# Keys


def test_memories_are_kept_by_run_client_and_round(memories: NodeMemories) -> None:
    keys = [(run, round, client) for run in (RUN, OTHER) for round in (1, 2) for client in (0, 1)]
    for value, (run, round, client) in enumerate(keys):
        memories.save(Task(run, round, client, round - 1), memory(value))
    found = [
        value_of(memories.load(Task(run, 3, client, round))) for run, round, client in keys
    ]  # as the third round would ask for them
    assert found == list(range(8))


def test_a_client_without_memory_has_an_empty_one_and_leaves_no_trace(
    memories: NodeMemories,
) -> None:
    assert memories.load(Task(RUN, 1, 0)) == {}
    memories.save(Task(RUN, 1, 0), {})
    assert not memories.folder.exists()


def test_a_task_that_asks_for_an_older_round_gets_it(memories: NodeMemories) -> None:
    for round in (1, 2, 3):
        memories.save(Task(RUN, round, 0, round - 1), memory(round))
    assert value_of(memories.load(Task(RUN, 3, 0, 2))) == 2
    memories.save(Task(RUN, 3, 0, 2), memory(33))
    assert value_of(memories.load(Task(RUN, 4, 0, 3))) == 33
    assert value_of(memories.load(Task(RUN, 4, 0, 2))) == 2


def test_older_ones_go(memories: NodeMemories) -> None:
    for round in range(1, 8):
        memories.save(Task(RUN, round, 0, round - 1, round - 1), memory(round))
        memories.save(Task(RUN, round, 1, min(round - 1, 2), min(round - 1, 2)), memory(round))
    assert [Path(name).stem for name in files(memories.folder) if "client-000000" in name] == [
        "round-000006",
        "round-000007",
    ]
    assert value_of(memories.load(Task(RUN, 8, 1, 2))) == 2  # of a client whose replies get lost


def test_a_straggler_does_not_take_a_newer_memory_away(memories: NodeMemories) -> None:
    """Where several of a node's tasks run at once, that of a late round may end after the next."""
    memories.save(Task(RUN, 1, 0), memory(1))
    late, next_round = Task(RUN, 2, 0, 1), Task(RUN, 3, 0, 1)
    memories.save(next_round, memory(3))
    memories.save(late, memory(2))
    assert value_of(memories.load(Task(RUN, 4, 0, 3))) == 3


# Loss and damage


def rename_a_tensor(path: Path) -> None:
    """The file is whole, but not what this method keeps."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    text = json.loads(data[8 : 8 + length])
    text["other"] = text.pop(next(name for name in text if name != "__metadata__"))
    encoded = json.dumps(text).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + length :])


DAMAGES: dict[str, Callable[[Path], object]] = {  # tests/reliability/test_files.py has more
    "lost": Path.unlink,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "another's": lambda path: save_file({"w": torch.zeros(3)}, path),
    "renamed": rename_a_tensor,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_client_that_has_lost_its_memory_goes_on_and_says_so(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def prepare(grid: InProcessGrid) -> None:
        push = grid.push_messages

        def spoil(messages: list[Message]) -> object:
            if any(codec.read_task(message.content).round == 2 for message in messages):
                (path,) = (folder / "memories").glob("*/client-000001/round-000001.safetensors")
                DAMAGES[damage](path)
            return push(messages)

        grid.push_messages = spoil  # type: ignore[assignment, method-assign]

    trained(folder, method=METHODS["moon"](), prepare=prepare, rounds=3)
    rounds, clients = rows_of(folder)
    assert [row["ok"] for row in rounds] == [4, 4, 4]
    lost = {
        (row["round"], row["client"]): row["metrics"]["memory_lost"]
        for row in clients
        if "memory_lost" in row["metrics"]
    }
    assert lost == {(2, 1): 1.0}


# Paths and modes

HARMFUL = ["../../x", "..", "", "/tmp/x", "x", f"{RUN}/../../x", f"{RUN}\n", f"../{RUN}"[:32]]
HARMFUL += [RUN.upper(), RUN + "0", RUN[:-1] + "\0", "*" * 32]


@pytest.mark.parametrize("run", HARMFUL)
def test_a_run_by_a_harmful_name_touches_no_path(run: str, tmp_path: Path) -> None:
    precious = tmp_path / "x" / "client-000000"
    precious.mkdir(parents=True)
    save_file(memory(1), precious / "round-000001.safetensors")
    memories = NodeMemories(tmp_path / "deep" / "memories")
    memories.save(Task(RUN, 1, 0), memory(2))
    before = files(tmp_path)
    for touch in (
        lambda: memories.load(Task(run, 2, 0, 1)),
        lambda: memories.save(Task(run, 2, 0), memory(3)),
        lambda: memories.forget(run),
    ):
        with pytest.raises(ProtocolError):
            touch()
    assert files(tmp_path) == before


@pytest.mark.parametrize("kind", ["train", "query.forget"])
@pytest.mark.parametrize("memory_round", [0, 1])
def test_so_does_a_message_with_it(kind: str, memory_round: int, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "precious").touch()
    folder = tmp_path / "deep" / "memories"
    folder.mkdir(parents=True)
    runner = toys.runner("moon", flat(), toys.federated(2))
    app = client_app(lambda context, task: Site(runner, NodeMemories(folder), 1))
    node = {"partition-id": 0, "num-partitions": 1, "memories": str(folder)}
    weights = codec.encode(snapshot(runner.model))
    content = codec.message(Task("../../x", 2, 0, memory_round), weights=weights)
    reply = app(
        Message(content, dst_node_id=1, message_type=kind),
        Context(1, 1, node, RecordDict(), {}),
    )
    assert reply.content["failed"]["code"] == "error"
    assert files(tmp_path) == ["x/precious"]


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_nobody_else_reaches_a_memory(memories: NodeMemories) -> None:
    memories.save(Task(RUN, 1, 0), memory(1))
    (path,) = memories.folder.rglob("*.safetensors")
    between = [path, *path.parents][: len(path.relative_to(memories.folder).parts) + 1]
    for others in (0o070, 0o007):
        reachable = [not step.stat().st_mode & others for step in between]
        assert any(reachable)
    assert (memories.folder / RUN).stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("_open_umask")
@pytest.mark.parametrize("place", ["", RUN, f"{RUN}/client-000000"])
def test_not_even_where_the_folder_was_there_before(place: str, memories: NodeMemories) -> None:
    (memories.folder / place).mkdir(parents=True)
    memories.save(Task(RUN, 1, 0), memory(1))
    (path,) = memories.folder.rglob("*.safetensors")
    inside = [path, path.parent, memories.folder / RUN]
    assert any(not step.stat().st_mode & 0o077 for step in inside)


# Forgetting

OTHERS = [
    "notes.txt",
    "thesis/chapter.tex",
    f"{OTHER}-backup/client-000000/round-000001.safetensors",
    f"{RUN}x/precious",
    "round-000001.safetensors",
]


def put_others(folder: Path, others: list[str]) -> None:
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


def test_forgetting_removes_that_run_and_nothing_else(memories: NodeMemories) -> None:
    put_others(memories.folder, OTHERS)
    for run in (RUN, OTHER):
        memories.save(Task(run, 1, 0), memory(1))
    memories.forget(RUN)
    kept = f"{OTHER}/client-000000/round-000001.safetensors"
    assert files(memories.folder) == sorted([*OTHERS, kept])
    assert not (memories.folder / RUN).exists()
    memories.forget(RUN)
    assert value_of(memories.load(Task(OTHER, 2, 0, 1))) == 1


def test_only_the_newest_runs_stay_and_other_things_are_left_alone(memories: NodeMemories) -> None:
    put_others(memories.folder, OTHERS)
    names = [f"{number:032x}" for number in reversed(range(KEPT_RUNS + 4))]
    for age, name in enumerate(names):
        memories.save(Task(name, 1, 0), memory(age))
        os.utime(memories.folder / name, (age, age))
    kept = [f"{name}/client-000000/round-000001.safetensors" for name in names[-KEPT_RUNS - 1 :]]
    assert files(memories.folder) == sorted([*OTHERS, *kept])


@pytest.mark.parametrize(
    "name", ["notes.txt", "round-old.safetensors", "round-.safetensors", "round-1/x"]
)
def test_other_things_beside_a_clients_memory_do_not_disturb(
    name: str, memories: NodeMemories
) -> None:
    home = memories.folder / RUN / "client-000000"
    put_others(home, [name])
    for round in (1, 2, 3, 4):
        memories.save(Task(RUN, round, 0, round - 1), memory(round))
    assert value_of(memories.load(Task(RUN, 5, 0, 4))) == 4
    assert (home / name).read_text() == "mine"


def test_the_end_of_a_run_clears_up_at_the_nodes(tmp_path: Path) -> None:
    """As the server app does."""
    runner = toys.runner("moon", flat(), toys.federated(2))
    memories = NodeMemories(tmp_path / "memories")
    grid = InProcessGrid(client_app(lambda context, task: Site(runner, memories, 1)), 2)
    for context in grid.contexts.values():
        context.node_config["memories"] = str(memories.folder)
    engine = engine_at(grid, runner, Roster(len(grid.contexts)), run=RUN)
    broadcast = Broadcast(1, snapshot(runner.model), {})
    assert len(list(engine.run(broadcast, [0, 1]))) == 2
    engine.settle([0, 1])
    memories.save(Task(OTHER, 1, 0), memory(1))
    assert len(files(memories.folder)) == 3
    engine.forget()
    assert files(memories.folder) == [f"{OTHER}/client-000000/round-000001.safetensors"]


# The right memory after a lost round


@dataclass(frozen=True)
class StumblingMOON(MOON):
    """Client 1 fails in round 2, before it has trained."""

    def objective(self, client: Client) -> Objective:
        return stumble(client) or super().objective(client)


@dataclass(frozen=True)
class StumblingScaffold(Scaffold):
    def objective(self, client: Client) -> Objective:
        return stumble(client) or super().objective(client)


def stumble(client: Client) -> None:
    if (client.id, client.round) == (1, 2):
        raise RuntimeError("no luck")


STUMBLING: dict[str, Method] = {"moon": StumblingMOON(), "scaffold": StumblingScaffold()}


def in_round_two(change: Callable[[Message], Message]) -> Tamper:
    def tamper(reply: Message) -> Message:
        return change(reply) if is_training(reply, 1, [2]) else reply

    return tamper


def content_changed(change: Callable[[RecordDict], None]) -> Tamper:
    def tamper(reply: Message) -> Message:
        change(reply.content)
        return reply

    return in_round_two(tamper)  # type: ignore[arg-type]


MISHAPS: dict[str, Callable[[], Tamper]] = {
    "late": lambda: held_back(1, 2, until=3),
    "never": lambda: held_back(1, 2, until=100),
    "failed": lambda: content_changed(fail),
    "lost by Flower": lambda: in_round_two(lambda reply: error_instead(reply, 8)),
    "unreadable": lambda: content_changed(HOSTILE["truncated data"]),
    "not finite": lambda: content_changed(HOSTILE["NaN"]),
}


@pytest.mark.parametrize("mishap", MISHAPS)
@pytest.mark.parametrize("method", KEEPERS)
def test_a_client_trains_from_the_memory_of_its_last_accepted_round(
    method: str, mishap: str, tmp_path: Path
) -> None:
    """The bits of a run in which the client has not even begun the lost round."""
    asked: list[tuple[int, int]] = []

    def prepare(grid: InProcessGrid) -> None:
        push = grid.push_messages

        def listen(messages: list[Message]) -> object:
            for message in messages:
                task = codec.read_task(message.content)
                if task.client == 1 and task.round:
                    asked.append((task.round, task.memory_round))
            return push(messages)

        grid.push_messages = listen  # type: ignore[assignment, method-assign]

    there = trained(
        tmp_path / "flower",
        MISHAPS[mishap](),
        method=METHODS[method](),
        prepare=prepare,
        rounds=4,
        deadline=5.0,
    )
    rounds, clients = rows_of(tmp_path / "flower")
    assert [row["ok"] for row in rounds] == [4, 3, 4, 4]
    assert not any("memory_lost" in row["metrics"] for row in clients)
    assert asked == [(1, 0), (2, 1), (3, 1), (4, 3)]
    alone = runs.trained(
        tmp_path / "alone",
        STUMBLING[method],
        1,
        rounds=4,
        dataset=runs.federation((3, 10, 5, 8)),
        model=flat(),
    )
    assert weights_of(there) == weights_of(alone)


def test_a_personal_part_stays_while_other_runs_come_and_go(memories: NodeMemories) -> None:
    """All that there is of the site's own model; other runs are the operator's to begin."""
    own = Task(RUN, 1, 0)
    memories.save(own, memory(1))
    memories.keep_digests(own, toys.dataset(4, 1).train)
    for number in range(KEPT_RUNS + 2):
        memories.save(Task(f"{number:032x}", 1, 0), memory(number))
    assert value_of(memories.load(Task(RUN, 2, 0, 1))) == 1


@pytest.mark.parametrize(
    "spoil",
    [lambda path: path.write_bytes(b"\xff\xfe"), lambda path: path.write_text("[" * 9999), pipe],
    ids=["bytes", "deep", "pipe"],
)
def test_spoilt_secrets_of_a_sum_are_one_line(
    spoil: Callable[[Path], object], memories: NodeMemories
) -> None:
    member = Member(memories, FixedPoint(frozenset(), {}, 1.0, 3, 2), Task(RUN, 1, 0))
    member.offer(codec.message(member.task))
    spoil(memories.folder / RUN / "secrets-000000.json")
    with pytest.raises(DCFLError) as caught:
        member.deal(codec.message(member.task))
    assert "\n" not in str(caught.value)
