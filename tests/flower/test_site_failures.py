"""A site that fails tells the server a code, and its own log the whole story."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import message_to_proto
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dcfl import errors
from dcfl.config import as_tables, to_toml
from dcfl.data.settings import DataSettings
from dcfl.errors import CODES, ProtocolError
from dcfl.experiment import Experiment
from dcfl.flower import client_app, codec
from dcfl.flower.codec import Task
from dcfl.flower.deploy.daemons import Daemon, Deployment, add_to_record
from dcfl.flower.deploy.submission import SiteLogs
from dcfl.flower.site_failures import LoggedFailure, code_of, failures_in
from tests.flower import in_process  # noqa: F401  (Flower makes no messages without it)

CLASSES = ("dark", "light")
SECRET = "patient-4711"  # in every path and name of the site
TASK = Task("a" * 32, 0, 0).ticketed()
Spoil = Callable[[Path, pytest.MonkeyPatch], object]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / SECRET
    for shade, value in zip(CLASSES, (0, 255), strict=True):
        (folder / shade).mkdir(parents=True)
        for number in range(5):
            picture = Image.new("RGB", (8, 8), (value,) * 3)
            picture.save(folder / shade / f"{SECRET}-{number}.png")
    return folder


def answer(scans: Path, kind: str = "query.whoami", **node: Any) -> Message:
    """Of the site's client app to the server."""
    data = DataSettings("remote", clients=2, image_size=8, class_names=CLASSES)
    run = {"experiment": to_toml(as_tables(Experiment(data=data)))}
    own = {"partition-id": 1, "num-partitions": 2, "data": f"folder:{scans}", "site": SECRET}
    message = Message(codec.message(TASK), dst_node_id=1, message_type=kind)
    context = Context(1, 1, {**own, **node}, RecordDict(), run)
    return client_app.app(message, context)


def sent(reply: Message) -> bytes:
    return message_to_proto(reply).SerializeToString()


def break_picture(scans: Path, _: pytest.MonkeyPatch) -> None:
    (scans / "light" / f"{SECRET}-3.png").write_text("no picture")


def no_memory(scans: Path, patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError(f"while reading {scans}")

    patch.setattr(client_app, "client_runner", fail)


def no_disk(scans: Path, patch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(scans))

    patch.setattr(client_app, "client_runner", fail)


def bug(scans: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_app, "client_runner", lambda *_: {}[str(scans)])


SPOILS: dict[str, Spoil] = {
    "picture": break_picture,
    "class": lambda scans, _: (scans / f"{SECRET}-class").mkdir(),
    "data": lambda scans, _: scans.rename(scans.with_name("moved")),
    "memory": no_memory,
    "disk": no_disk,
    "error": bug,
}


@pytest.mark.parametrize("kind", ["query.whoami", "train", "evaluate", "evaluate.scores"])
@pytest.mark.parametrize("code", SPOILS)
def test_no_path_or_name_of_a_site_crosses_the_wire(
    code: str,
    kind: str,
    scans: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    SPOILS[code](scans, monkeypatch)
    on_the_wire = sent(answer(scans, kind))
    assert SECRET.encode() not in on_the_wire
    assert code.encode() in on_the_wire
    log = capsys.readouterr().err
    (logged,) = failures_in(log)
    assert (logged.code, SECRET in logged.reason) == (code, True)


@pytest.mark.parametrize("code", SPOILS)
def test_the_server_says_what_the_code_means(
    code: str, scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SPOILS[code](scans, monkeypatch)
    content = answer(scans).content
    assert codec.failed_place(content) == 1
    with pytest.raises(ProtocolError) as caught:
        codec.read_claim(content, TASK, 2)
    assert str(caught.value) == CODES[code]


def test_a_site_may_leave_its_broken_pictures_out(
    scans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_picture(scans, monkeypatch)
    with pytest.warns(UserWarning, match=f"skipped 1 broken image: light/{SECRET}-3.png"):
        reply = answer(scans, broken="skip")
    assert SECRET.encode() not in sent(reply)
    assert codec.read_claim(reply.content, TASK, 2).images == [1, 1]


def test_a_config_that_the_site_cannot_read_is_another_version(scans: Path) -> None:
    message = Message(codec.message(TASK), dst_node_id=1, message_type="query.whoami")
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {})
    context.run_config["experiment"] = "[data]\nkey_of_tomorrow = 1\n"
    assert client_app.app(message, context).content["failed"]["code"] == "version"


def test_every_error_has_a_code_of_the_list() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = [kind for kind in kinds if issubclass(kind, errors.DCFLError)]
    assert len(ours) > 15
    for kind in ours:
        error = kind(0, "why") if issubclass(kind, errors.ClientFailure) else kind("why")
        assert code_of(error) in CODES
    assert code_of(errors.ConfigError("why")) == "config"
    assert code_of(errors.StorageError("why")) == "disk"
    assert code_of(errors.DatasetCorrupt("why")) == "data"
    assert code_of(torch.OutOfMemoryError("out")) == "memory"
    assert code_of(OSError(errno.EDQUOT, "quota")) == "disk"
    assert code_of(ZeroDivisionError()) == "error"


@settings(max_examples=30)
@given(st.sampled_from(sorted(CODES)), st.text(min_size=1), st.text())
def test_what_is_logged_is_found_again_among_other_lines(code: str, why: str, noise: str) -> None:
    failure = LoggedFailure(code, why)
    assert "\n" not in failure.line
    (found,) = failures_in(f"INFO: before\n{failure.line}\nINFO dcfl failed (error): {noise!r}\n")
    assert found.code == code
    assert LoggedFailure(*found).line == failure.line


def test_the_operators_own_machine_names_site_cause_and_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    nodes = [Daemon(name, 1, None, partition=n) for n, name in enumerate(("north", "south"))]
    add_to_record(tmp_path, Deployment("127.0.0.1:1", True), Daemon("superlink", 1, None), *nodes)
    line = LoggedFailure("picture", "x.png: a broken image (truncated)").line
    (logs / "south.log").write_text(f"{line}\n")  # of a run before
    told = SiteLogs(tmp_path)
    assert told.news() == []
    with (logs / "south.log").open("a") as log:
        log.write(f"INFO\n{line}\n{line}\n{LoggedFailure('disk', 'full').line}")
        log.flush()
        (news,) = told.news()
        log.write("\n")
    log_of_south = f"log {logs / 'south.log'}"
    assert news == f"site south: x.png: a broken image (truncated); {log_of_south}"
    assert [line.split(";")[0] for line in told.news()] == ["site south: full"]
    assert told.news() == []
