"""Nothing leaves a site unrecorded, and a record that was changed shows it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dcfl.cli.main import app as command_line
from dcfl.config import as_tables, to_toml
from dcfl.flower import audit_log, codec
from dcfl.flower.audit_log import AuditEntry, AuditLog
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from tests.flower.sites_in_process import Sites, pictures, remote_experiment

ENTRY = AuditEntry("2026-01-01T00:00:00.000+00:00", "a" * 32, 1, 0, "train", "answered", bytes=7)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    disk = tmp_path_factory.mktemp("disk")
    return [pictures(disk / "north", 20, 10), pictures(disk / "south", 10, 20)]


def test_every_message_of_a_run_has_its_line(folders: list[Path], tmp_path: Path) -> None:
    """Against what the wire carried: names and bytes of each answer, by another way of counting."""
    rules = [{"audit": str(tmp_path / f"{place}.jsonl")} for place in range(2)]
    trial = Sites(folders, rules)
    recorded = trial.train(remote_experiment(tmp_path / "out", method__name="dcfl-pw"))
    for place in range(2):
        found = AuditLog(tmp_path / f"{place}.jsonl").read()
        assert (found.torn, found.breaks) == (0, 0)
        answers = [reply for reply in trial.replies if reply.metadata.src_node_id == 100 + place]
        kinds = [reply.metadata.message_type for reply in answers]
        assert sorted(entry.asked for entry in found.entries) == sorted(kinds)
        assert sum(entry.bytes for entry in found.entries) == sum(map(carried, answers))
        assert {entry.run for entry in found.entries} == {
            reply.content.config_records["task"]["run"] for reply in answers
        }
        (first, second) = (entry for entry in found.entries if entry.asked == "train")
        assert (first.round, second.round) == (1, 2)
        assert "weights" in first.sent
        assert {"counts.num-examples", "metrics.loss"} <= {*first.sent}
        assert any(name.startswith("upload.") for name in first.sent)
        assert (first.vectors, first.noise, first.epsilon) == (2, 0.0, None)
        judgements = [entry.round for entry in found.entries if entry.asked == "evaluate"]
        assert judgements == [1, 2]
        (judged,) = {e.sent for e in found.entries if e.asked == "evaluate"}
        assert {*judged} == {"score.right", "score.totals", "score.losses"}
    assert sum(row["bytes_up"] for row in recorded.rounds) > 0


def carried(reply: Message) -> int:
    total = 0
    for record in reply.content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        else:
            total += len(record.deflate())
    return total


def test_a_refusal_has_its_line_too(folders: list[Path], tmp_path: Path) -> None:
    content = whoami(Sites(folders, [{}, {}]).node(0) | {"data": "", "audit": str(tmp_path / "a")})
    assert "failed" in content
    (entry,) = AuditLog(tmp_path / "a").read().entries
    assert (entry.outcome, entry.asked) == ("failed", "query.whoami")
    assert entry.sent == ("failed.code", "failed.partition-id")
    assert entry.reason


def whoami(node: dict[str, Any]) -> RecordDict:
    run = {"experiment": to_toml(as_tables(remote_experiment(Path("never written"))))}
    task = codec.message(Task("a" * 32, 0, 0).ticketed())
    message = Message(task, dst_node_id=1, message_type="query.whoami")
    return app(message, Context(1, 1, node, RecordDict(), run)).content


def test_what_cannot_be_recorded_does_not_leave(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    content = whoami(Sites(folders).node(0) | {"audit": str(tmp_path / "folder.jsonl")})
    assert dict(content.config_records["failed"]) == {"code": "disk", "partition-id": 0}
    assert "node" not in content


def test_the_line_is_private_and_on_the_disk_when_the_answer_is_made(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(audit_log.os, "fsync", lambda descriptor: synced.append(descriptor))
    content = whoami(Sites(folders).node(0) | {"audit": str(tmp_path / "a.jsonl")})
    assert "node" in content
    assert synced
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def fill(path: Path, count: int) -> AuditLog:
    log = AuditLog(path)
    for round in range(1, count + 1):
        log.append(lambda history, round=round: replace(ENTRY, round=round))  # type: ignore[misc]
    return log


@settings(max_examples=20)
@given(cut=st.integers(1, 10**4))
def test_half_a_line_is_passed_over_and_the_next_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    log = fill(tmp_path_factory.mktemp("log") / "audit.jsonl", 2)
    text = log.path.read_bytes()
    last = text.rindex(b"\n", 0, -1) + 1
    log.path.write_bytes(text[: last + cut % (len(text) - last - 1)])  # at most: all but the end
    log.append(lambda history: replace(ENTRY, round=3))
    found = log.read()
    assert [entry.round for entry in found.entries] == [1, 3]
    assert found.breaks == 0
    assert found.torn == bool(cut % (len(text) - last - 1))


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "changed": lambda lines: [lines[0], lines[1].replace('"bytes": 7', '"bytes": 6'), *lines[2:]],
    "removed": lambda lines: [lines[0], *lines[2:]],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "first removed": lambda lines: lines[1:],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_record_shows_it(
    change: Callable[[list[str]], list[str]], tmp_path: Path
) -> None:
    log = fill(tmp_path / "audit.jsonl", 4)
    assert log.read().breaks == 0
    log.path.write_text("\n".join(change(log.path.read_text().splitlines())) + "\n")
    assert log.read().breaks >= 1
    shown = CliRunner().invoke(command_line, ["flower", "audit", str(tmp_path)])
    assert "a line was changed or removed" in str(shown.exception)
    assert "nothing was changed" not in shown.output


def test_many_at_once_each_have_their_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "deep" / "audit.jsonl")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: log.append(lambda history: replace(ENTRY, round=n)), range(40)))
    found = log.read()
    assert sorted(entry.round for entry in found.entries) == list(range(40))
    assert (found.torn, found.breaks) == (0, 0)


def test_a_killed_writer_leaves_a_log_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writer = os.fork()
    if not writer:
        fill(path, 10**6)
        os._exit(1)
    while not path.is_file() or path.read_bytes().count(b"\n") < 3:
        time.sleep(0.01)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    before = len(AuditLog(path).read().entries)
    assert before >= 3
    found = fill(path, 1).read()
    assert (len(found.entries), found.breaks) == (before + 1, 0)


def test_a_person_reads_it(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "memories" / "site-0" / "audit.jsonl")
    sent = ("weights", "counts.num-examples", "counts.kept", "metrics.loss")
    refused = replace(ENTRY, round=0, outcome="refused", reason="it withholds \x1b[31m")
    log.append(lambda history: refused)
    log.append(lambda history: replace(ENTRY, sent=sent, vectors=1, noise=2.0, epsilon=4.381))
    shown = CliRunner().invoke(command_line, ["flower", "audit", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "2 messages (1 answered, 1 refused), 14 bytes sent" in shown.output
    assert "sent: weights; counts: num-examples, kept; metrics: loss" in shown.output
    assert "epsilon 4.38 so far" in shown.output
    assert "  round 1  " in shown.output
    assert "  round -  " in shown.output
    assert "\x1b" not in shown.output
    assert "nothing was changed or removed" in shown.output
    told = json.loads(
        CliRunner().invoke(command_line, ["flower", "audit", str(log.path), "--json"]).output
    )
    ((place, record),) = told.items()
    assert place == str(log.path)
    assert [entry["outcome"] for entry in record["entries"]] == ["refused", "answered"]


def test_where_there_is_none_one_line_says_so(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command_line, ["flower", "audit", str(tmp_path)])
    assert "no audit.jsonl here" in str(shown.exception)
