"""The server of `dcfl watch`, and the page that follows runs whatever becomes of their folders."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from dcfl.errors import ConfigError
from dcfl.report import watch as following
from dcfl.report.watch import FollowedRuns, WatchServer, watching
from tests.report.folders import row, write_run


class Answer(NamedTuple):
    status: int
    text: str
    headers: http.client.HTTPMessage


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    write_run(tmp_path / "runs" / "a", [20.0, 30.0], finished=False)
    with watching([tmp_path / "runs"]) as started:
        yield started


def ask(server: WatchServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return Answer(answer.status, answer.read().decode(), answer.headers)


def test_only_who_knows_the_token_and_the_name_is_answered(server: WatchServer) -> None:
    own = f"/{server.token}/"
    assert ask(server, own).status == 200
    assert ask(server, own, Host=f"localhost:{server.server_port}").status == 200
    for path in (
        "/",
        "/x/",
        f"/{server.token}",
        f"{own}config.toml",
        f"{own}../",
        f"/{server.token[:-1]}/state",
    ):
        answer = ask(server, path)
        assert (answer.status, answer.text) == (404, "nothing here\n"), path
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", ""):
        answer = ask(server, own, Host=host)
        assert (answer.status, answer.text) == (421, "not this server\n"), host
    assert ask(server, own, "POST").status == 501
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 20


def test_the_page_may_ask_its_own_server_alone_and_is_not_kept(server: WatchServer) -> None:
    answer = ask(server, f"/{server.token}/")
    assert "connect-src &#39;self&#39;" in answer.text
    assert "unsafe" not in answer.text.partition("</head>")[0].partition("<style>")[0]
    assert "<img" not in answer.text  # charts, and no pictures that take a second each to draw
    for name, value in {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}.items():
        assert answer.headers[name] == value
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


def test_news_are_sent_once(server: WatchServer, tmp_path: Path) -> None:
    state = f"/{server.token}/state"
    first = json.loads(ask(server, state).text)
    assert "2 of 2" in first["content"]
    same = json.loads(ask(server, f"{state}?version={first['version']}").text)
    assert same == {"version": first["version"]}
    append(tmp_path / "runs" / "a", 3, [20.0, 30.0, 37.5])
    news = json.loads(ask(server, f"{state}?version={first['version']}").text)
    assert news["version"] != first["version"]
    assert "37.50" in news["content"]


def append(folder: Path, number: int, accuracies: list[float]) -> None:
    with (folder / "rounds.jsonl").open("a") as log:
        log.write(json.dumps(row(number, accuracies)) + "\n")


def test_a_port_that_is_taken_is_a_mistake_of_the_users(server: WatchServer) -> None:
    for port in (server.server_port, 99_999):
        with pytest.raises(ConfigError, match=f"--port {port}"), watching([], port):
            pass


# The page, without a server


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    page = FollowedRuns([tmp_path / "later"])
    assert "There is no run to show in" in page.state().content
    write_run(tmp_path / "later" / "deep" / "deeper" / "run", [50.0])
    assert "fedavg on digits" in page.state().title
    assert "1 of 1 run finished" in page.state().content


def test_half_written_files_are_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", [50.0])
    half = write_run(tmp_path / "half", [60.0], finished=False).folder
    page = FollowedRuns([tmp_path])
    good = (half / "partition.npz").read_bytes()
    (half / "partition.npz").write_bytes(good[:100])
    said = page.state().content
    assert "half cannot be read now" in said
    assert "50.00" in said
    assert str(tmp_path) not in said
    (half / "partition.npz").write_bytes(good)
    assert "cannot be read" not in page.state().content
    (half / "evaluation.json").write_text("{")
    assert "half cannot be read now" in page.state().content
    (half / "evaluation.json").unlink()
    (half / "config.toml").write_text("[data")
    assert "half cannot be read now" in page.state().content


def test_end_resume_and_removal_are_followed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [20.0, 30.0, 40.0], finished=False).folder
    page = FollowedRuns([tmp_path])
    assert "3 of 3" in page.state().content
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0])  # resumed from a checkpoint before the kill
    assert "1 of 3" in page.state().content
    (folder / "summary.json").write_text(json.dumps({"method": "fedavg", "dataset": "digits"}))
    assert "finished" in page.state().content
    for path in folder.iterdir():
        path.unlink()
    assert "There is no run to show in" in page.state().content


def test_nothing_is_read_again_while_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "a", [20.0])
    second = write_run(tmp_path / "b", [30.0], finished=False).folder
    page, read = FollowedRuns([tmp_path]), following._read
    first = page.state()
    asked: list[str] = []
    monkeypatch.setattr(
        following, "_read", lambda folder: asked.append(folder.name) or read(folder)
    )
    assert page.state() is first
    append(second, 2, [30.0, 31.0])
    assert page.state() is not first
    assert asked == ["b"]


@pytest.mark.slow
def test_the_verb_says_where_and_stops_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dcfl", "watch", str(tmp_path / "later")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as verb:
        assert verb.stdout is not None
        address = urlsplit(verb.stdout.readline().split()[1])
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        connection.request("GET", address.path)
        assert "There is no run" in connection.getresponse().read().decode()
        verb.send_signal(signal.SIGINT)
        _, errors = verb.communicate(timeout=60)
    assert (verb.returncode, errors) == (0, "")
