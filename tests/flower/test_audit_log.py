"""Nothing leaves a site unrecorded, and a record that was changed shows it."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dcfl.cli.main import app as command_line
from dcfl.config import as_tables, to_toml
from dcfl.errors import SiteRefusal, StorageError
from dcfl.flower import audit_log, codec
from dcfl.flower.audit_log import AuditEntry, AuditLog, Head
from dcfl.flower.client_app import app
from dcfl.flower.codec import Task
from dcfl.flower.site_rules import Question, SiteRules
from tests.flower.sites_in_process import Sites, pictures, remote_experiment
from tests.reliability.test_folders import nastier
from tests.reliability.victims import SLOW, damaged

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
        noted = [codec.read_record(reply.content) for reply in answers]
        assert all(found.has(*one) for one in noted if one)
        assert max(one[0] for one in noted if one) == len(found.entries) == len(noted)
        assert {entry.about for entry in found.entries} == {
            "method.name = dcfl-pw, model.name = cnn, data.image_size = 8, training.epochs = 1, "
            "privacy.noise = 0.0, privacy.where = client"
        }
        assert len({entry.salt for entry in found.entries}) == len(noted)
    assert sum(row["bytes_up"] for row in recorded.rounds) > 0


def test_a_record_that_has_become_shorter_is_noticed_by_the_server(
    folders: list[Path], tmp_path: Path
) -> None:
    """With all that lies beside it: here nobody sees it."""
    log = tmp_path / "0.jsonl"
    rules = [{"audit": str(log)}, {"audit": str(tmp_path / "1.jsonl")}]

    class Forgetful(Sites):
        def _seen(self, reply: Message) -> Message:
            if reply.metadata.message_type == "evaluate":
                log.unlink(missing_ok=True)
                log.with_name("0.jsonl.head").unlink(missing_ok=True)
            return super()._seen(reply)

    recorded = Forgetful(folders, rules).train(remote_experiment(tmp_path / "out"))
    assert AuditLog(log).read().breaks == 0
    notices = [notice for row in recorded.rounds for notice in row.notices]
    assert notices == ["site 0 has fewer lines in its record than before"]


def carried(reply: Message) -> int:
    total = 0
    for name, record in reply.content.items():
        if name == "record":  # of this line itself
            continue
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
@given(cut=st.integers(0, 10**4))
def test_half_a_line_is_passed_over_and_the_next_is_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """A kill while a line is written, or before its number is."""
    log = fill(tmp_path_factory.mktemp("log") / "audit.jsonl", 1)
    before, head = log.path.read_bytes(), head_of(log).read_bytes()
    fill(log.path, 1)
    after = log.path.read_bytes()
    written = cut % (len(after) - len(before) + 1)
    log.path.write_bytes(after[: len(before) + written])
    head_of(log).write_bytes(head)
    whole = written >= len(after) - len(before) - 1  # but for the end of the line
    assert log.read().breaks == 0
    log.append(lambda history: replace(ENTRY, round=3))
    found = log.read()
    assert [entry.round for entry in found.entries] == ([1, 1, 3] if whole else [1, 3])
    assert (found.breaks, found.torn) == (0, bool(written) and not whole)
    assert found.head.lines == len(found.entries)


def head_of(log: AuditLog) -> Path:
    return log.path.with_name(f"{log.path.name}.head")


@settings(max_examples=20)
@given(kills=st.lists(st.booleans(), min_size=1, max_size=8))
def test_kills_between_a_line_and_its_number_are_no_change(
    tmp_path_factory: pytest.TempPathFactory, kills: list[bool]
) -> None:
    log = AuditLog(tmp_path_factory.mktemp("log") / "audit.jsonl")
    for killed in kills:
        killed_after_the_line(log) if killed else fill(log.path, 1)
    assert len(log.read().entries) == len(kills)
    assert (log.read().torn, log.read().breaks) == (0, 0)


def killed_after_the_line(log: AuditLog) -> None:
    size = log.path.stat().st_size if log.path.exists() else 0
    write = AuditLog._write

    def write_or_die(log: AuditLog, head: Head) -> None:
        if log.path.exists() and log.path.stat().st_size > size:
            raise KeyboardInterrupt
        write(log, head)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AuditLog, "_write", write_or_die)
        with pytest.raises(KeyboardInterrupt):
            fill(log.path, 1)


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "changed": lambda lines: [lines[0], lines[1].replace('"bytes": 7', '"bytes": 6'), *lines[2:]],
    "removed": lambda lines: [lines[0], *lines[2:]],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "first removed": lambda lines: lines[1:],
    "last changed": lambda lines: [*lines[:-1], lines[-1].replace('"bytes": 7', '"bytes": 6')],
    "last removed": lambda lines: lines[:-1],
    "last three removed": lambda lines: lines[:1],
    "last cut": lambda lines: [*lines[:-1], lines[-1][:40]],
    "last twice": lambda lines: [*lines, lines[-1]],
    "emptied": lambda lines: [],
    "no text at all": lambda lines: ["\0" * 10**6],
}


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_record_shows_it(
    change: Callable[[list[str]], list[str]], later: int, tmp_path: Path
) -> None:
    """For ever: what is answered later does not heal it."""
    log = fill(tmp_path / "audit.jsonl", 4)
    assert log.read().breaks == 0
    log.path.write_text("".join(f"{line}\n" for line in change(log.path.read_text().splitlines())))
    fill(log.path, later)
    shown_to_be_changed(log)


@pytest.mark.parametrize("later", [0, 1, 2])
@pytest.mark.parametrize("gone", ["the log", "the head", "a garbled head"])
def test_a_removed_file_shows_it(gone: str, later: int, tmp_path: Path) -> None:
    log = fill(tmp_path / "audit.jsonl", 4)
    if gone == "a garbled head":
        head_of(log).write_text("[" * 10**5)
    else:
        (log.path if gone == "the log" else head_of(log)).unlink()
    fill(log.path, later)
    shown_to_be_changed(log)


def shown_to_be_changed(log: AuditLog) -> None:
    assert log.read().breaks >= 1
    for place in (log.path, log.path.parent):
        shown = CliRunner().invoke(command_line, ["flower", "audit", str(place)])
        assert "a line was changed or removed" in str(shown.exception)
        assert isinstance(shown.exception, StorageError)
        assert "nothing was changed" not in shown.output


@settings(max_examples=30)
@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(0, 400))
def test_whatever_stands_there_is_read(
    tmp_path_factory: pytest.TempPathFactory, log_text: bytes, head_text: bytes, cut: int
) -> None:
    log = fill(tmp_path_factory.mktemp("log") / "audit.jsonl", 1)
    whole, head = log.path.read_bytes(), head_of(log).read_bytes()
    log.path.write_bytes(whole[:cut] + log_text)
    head_of(log).write_bytes(head_text)
    changed = (log.path.read_bytes(), head_of(log).read_bytes()) != (whole, head)
    before = len(log.read().entries)
    fill(log.path, 2)
    found = log.read()
    assert len(found.entries) == before + 2  # nothing is lost
    assert not found.breaks or changed


def test_a_line_costs_no_walk_along_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fill(tmp_path / "audit.jsonl", 20)
    walked = []
    monkeypatch.setattr(audit_log, "_parsed", parsed_and_noted(walked))
    log.append(lambda history: ENTRY)
    assert [kind.__name__ for kind in walked] == ["Head"]
    log.append(lambda history: replace(ENTRY, round=len(history.entries)), lambda entry: False)
    assert walked.count(AuditEntry) == 21
    assert log.read().entries[-1].round == 0


def parsed_and_noted(kinds: list[Any]) -> Callable[..., Any]:
    parsed = audit_log._parsed
    return lambda kind, text: (kinds.append(kind), parsed(kind, text))[1]


@pytest.mark.parametrize("sent", [("x" * 100,) * 10**4, ("x" * 100_001,), ("",) * 10**5])
def test_what_could_not_be_read_again_is_not_written(sent: tuple[str, ...], tmp_path: Path) -> None:
    """It would be taken for half a line, whose answer has not left."""
    log = fill(tmp_path / "audit.jsonl", 1)
    with pytest.raises(StorageError, match="too many for a line"):
        log.append(lambda history: replace(ENTRY, sent=sent))
    assert len(fill(log.path, 1).read().entries) == 2


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
    last = sha256(log.path.read_bytes().splitlines()[-1]).hexdigest()[:32]
    assert f"for an auditor to note: 2 lines, the last {last}" in shown.output
    told = json.loads(
        CliRunner().invoke(command_line, ["flower", "audit", str(log.path), "--json"]).output
    )
    ((place, record),) = told.items()
    assert place == str(log.path)
    assert [entry["outcome"] for entry in record["entries"]] == ["refused", "answered"]
    assert (record["lines"], record["last"], record["breaks"]) == (2, last, 0)


def test_where_there_is_none_one_line_says_so(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command_line, ["flower", "audit", str(tmp_path)])
    assert "no audit.jsonl here" in str(shown.exception)


@pytest.mark.parametrize("name", ["audit.jsonl", "audit.jsonl.head"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(name: str, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.append(lambda history: ENTRY)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    for use in (log.read, lambda: log.append(lambda history: ENTRY)):
        with pytest.raises(StorageError, match="not a file"):
            use()


def test_mutations_of_a_log_and_its_head_are_noticed(tmp_path: Path) -> None:
    """The record is as it was, or broken; a limit that was reached stays reached either way."""
    log = fill(tmp_path / "audit.jsonl", 4)
    files, rng = (log.path, head_of(log)), random.Random(1)
    originals, known = [path.read_bytes() for path in files], log.read().entries
    rules, question = SiteRules(rounds=4, log=log), Question("train", Task("c" * 32, 9, 0))
    for _ in range(4_000 if SLOW else 300):
        for path, content in zip(files, originals, strict=True):
            path.write_bytes(content)
        path = rng.choice(files)
        lines = path.read_text().splitlines()
        at, kind = rng.randrange(len(lines)), rng.randrange(4)
        if kind == 0:
            path.write_bytes(damaged(path.read_bytes(), rng))
        elif kind == 1:
            lines[at] = json.dumps(nastier(json.loads(lines[at]), rng))
            path.write_text("\n".join(lines) + "\n")
        else:
            path.write_text(
                "\n".join([*lines[:at], *[lines[at]] * 2 * (kind - 2), *lines[at + 1 :]])
            )
        found = log.read()
        assert found.breaks or found.entries == known
        with pytest.raises(SiteRefusal):
            rules.check(question)


def test_empty_lines_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them kept a site busy for minutes."""
    log, parsed, parse = AuditLog(tmp_path / "audit.jsonl"), list[Any](), audit_log._parsed
    log.append(lambda history: ENTRY)
    log.path.open("a").write("\n" * 1000)

    def counting(kind: Any, text: bytes) -> Any:
        parsed.append(text)
        return parse(kind, text)

    monkeypatch.setattr(audit_log, "_parsed", counting)
    assert not log.read().breaks
    assert len(parsed) == 2  # the head, and the one line


STRANGE = [
    "method = 'x'",
    "data = 5",
    "server = true",
    "a." * 10**5 + "b = 1",
]  # the last took hours


@pytest.mark.parametrize("table", STRANGE, ids=["text", "number", "bool", "parts"])
def test_a_config_of_no_tables_is_recorded_too(table: str, tmp_path: Path) -> None:
    context = Context(
        1, 1, {"audit": str(tmp_path / "a.jsonl")}, RecordDict(), {"experiment": table}
    )
    message = Message(codec.message(Task("a" * 32, 1, 0)), dst_node_id=1, message_type="train")
    assert app(message, context).content["failed"]["code"] == "version"
    (entry,) = AuditLog(tmp_path / "a.jsonl").read().entries
    assert (entry.outcome, entry.about) == ("failed", "")
