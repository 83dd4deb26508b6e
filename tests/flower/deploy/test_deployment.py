from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from dcfl.errors import ConfigError, NetworkError
from dcfl.flower.deploy import daemons as processes
from dcfl.flower.deploy import deployment as startup
from dcfl.flower.deploy import superlink as calls
from dcfl.flower.deploy.daemons import (
    Daemon,
    Deployment,
    add_to_record,
    free_ports,
    read_record,
    script,
)
from dcfl.flower.deploy.deployment import connection, down, roster_of, status, up, usable_names
from dcfl.flower.deploy.keys import make_keys
from dcfl.flower.deploy.superlink import Connection
from dcfl.flower.roster import fingerprint_in
from tests.flower.deploy.pictures import pictures

SLEEP = "import time; time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True);" + SLEEP


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    down(tmp_path / "home")


@pytest.fixture
def spawn() -> Iterator[Any]:
    """Start a process that cannot outlive the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str = SLEEP, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def marked(home: Path) -> dict[str, str]:
    return {**os.environ, processes.MARKER: str(home)}


def daemon(process: subprocess.Popen[bytes], later: float = 0.0, **more: Any) -> Daemon:
    began = processes.start_of(process.pid)
    assert began is not None
    return Daemon("superlink", process.pid, began + later, **more)


def record(home: Path, *daemons: Daemon) -> None:
    home.mkdir(exist_ok=True)
    add_to_record(home, Deployment("127.0.0.1:1", False), *daemons)


def fake(
    monkeypatch: pytest.MonkeyPatch, superlink: str = SLEEP, supernode: str = SLEEP
) -> list[Sequence[str]]:
    """Daemons that only sleep, and a SuperLink that says yes; what was asked of it."""
    asked: list[Sequence[str]] = []

    def ask(link: Connection, *words: str, **more: Any) -> dict[str, Any]:
        asked.append(words)
        nodes = [{"node-id": "7", "status": "online"}]
        runs = [{"run-id": "5", "status": "running"}]
        return {"success": True, "nodes": nodes, "runs": runs, "run-id": "5"}

    python = [sys.executable, "-c"]
    monkeypatch.setattr(startup, "superlink_command", lambda *_: [*python, superlink])
    monkeypatch.setattr(startup, "supernode_command", lambda *_, **__: [*python, supernode])
    monkeypatch.setattr(calls, "script", lambda name: f"/scripts/{name}")
    monkeypatch.setattr(startup, "listening", lambda port: True)
    monkeypatch.setattr(startup, "ask", ask)
    monkeypatch.setattr(calls, "ask", ask)
    return asked


def left(home: Path) -> set[int]:
    found = processes.processes_of(home.resolve(), read_record(home.resolve()).daemons)
    return {process.pid for process in found}


def test_what_was_recorded_is_ended(home: Path, spawn: Any) -> None:
    process = spawn()
    record(home, daemon(process))
    assert down(home) == 1
    assert process.wait(1) is not None
    assert not (home / "processes.json").exists()
    assert down(home) == 0


def test_a_recycled_pid_is_never_ended(home: Path, spawn: Any) -> None:
    stranger = spawn()
    record(home, daemon(stranger, 0.01), daemon(stranger, -3600))
    assert down(home) == 0
    assert stranger.poll() is None


def test_an_orphan_is_found_by_its_environment(home: Path, spawn: Any) -> None:
    orphan = spawn(env=marked(home), start_new_session=True)
    neighbour = spawn(env=marked(home.with_name("home2")))
    record(home)
    assert down(home) == 1
    assert orphan.wait(1) == -signal.SIGTERM
    assert neighbour.poll() is None


def test_children_of_a_daemon_are_ended_with_it(
    home: Path, spawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    # Deaf and without a mark: once its parent is gone, nothing tells whose it is.
    start = f"subprocess.Popen([sys.executable, '-c', {DEAF!r}], env={{}})"
    parent = spawn(f"import subprocess, sys; {start}; {SLEEP}")
    parent.stdout.readline()
    (child,) = psutil.Process(parent.pid).children()
    record(home, daemon(parent, partition=0))
    assert down(home) == 2
    assert processes.start_of(parent.pid) is processes.start_of(child.pid) is None


def test_who_does_not_listen_is_killed(
    home: Path, spawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    deaf = spawn(DEAF)
    deaf.stdout.readline()
    record(home, daemon(deaf))
    assert down(home) == 1
    assert deaf.wait(1) is not None


def test_the_caller_is_spared_even_if_marked(home: Path, spawn: Any) -> None:
    code = "import sys; from pathlib import Path; from dcfl.flower.deploy.deployment import down;"
    code += "print(down(Path(sys.argv[1])))"
    caller = spawn(code, str(home), env=marked(home))
    assert caller.communicate(timeout=60)[0].strip() == b"0"


@pytest.fixture
def hidden_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    def environ(process: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "environ", environ)


@pytest.mark.usefixtures("hidden_environments")
def test_without_environments_flower_is_known_by_group_or_by_what_it_watches(
    home: Path, spawn: Any
) -> None:
    leader = spawn(process_group=0)
    record(home, daemon(leader))
    in_group = spawn(SLEEP, "flwr-clientapp", process_group=leader.pid)
    watching = spawn(SLEEP, "flower-superexec", "--parent-pid", str(leader.pid))
    others = spawn(SLEEP, "flwr-clientapp"), spawn(SLEEP, "tail", process_group=leader.pid)
    leader.kill()
    leader.wait()
    assert down(home) == 2
    assert in_group.wait(1) == watching.wait(1) == -signal.SIGTERM
    assert [other.poll() for other in others] == [None, None]


@pytest.mark.usefixtures("hidden_environments")
def test_the_group_of_a_recycled_pid_is_left_alone(home: Path, spawn: Any) -> None:
    stranger = spawn(SLEEP, "flwr-clientapp", start_new_session=True)
    record(home, daemon(stranger, -3600))
    assert down(home) == 0
    assert stranger.poll() is None


def test_up_and_down_with_fake_daemons(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake(monkeypatch, supernode="print('SuperNode ID: 7', flush=True);" + SLEEP)
    link = up(home, 2)
    assert link == connection(home)
    assert link.insecure
    assert link.flwr_home == home / "flwr"
    assert len(left(home)) == 3
    assert (home / "processes.json").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    rows = json.loads((home / "processes.json").read_text())["daemons"]
    assert [row["partition"] for row in rows] == [None, 0, 1]
    assert {os.getsid(row["pid"]) for row in rows} == {row["pid"] for row in rows}
    assert {Path(f"/proc/{row['pid']}/cwd").resolve() for row in rows} == {home / "work"}
    seen = status(home)
    assert seen.alive
    assert [(node.partition, node.alive, node.online) for node in seen.nodes] == [
        (0, True, True),
        (1, True, True),
    ]
    assert [(run.run, run.status) for run in seen.runs] == [(5, "running")]
    assert not any("register" in words for words in asked)
    with pytest.raises(ConfigError, match="dcfl flower down"):
        up(home, 2)
    assert len(left(home)) == 3
    assert down(home) == 3
    assert not left(home)
    with pytest.raises(ConfigError, match="dcfl flower up"):
        status(home)


def test_sites_have_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, supernode="print('SuperNode ID: 7', flush=True);" + SLEEP)
    up(home, 2, names=["north", "south"])
    assert roster_of(home).names == ("north", "south")
    assert [node.name for node in status(home).nodes] == ["north", "south"]
    assert all((home / "logs" / f"{name}.log").is_file() for name in ("north", "south"))
    down(home)


def test_up_knows_its_sites_by_their_keys(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["north", "south"])
    nodes = [Daemon(name, 1, None, place) for place, name in enumerate(("north", "south"))]
    add_to_record(tmp_path, Deployment("127.0.0.1:1", True), Daemon("superlink", 1, None), *nodes)
    roster = roster_of(tmp_path)
    keys = (tmp_path / "keys" / f"{name}.pub" for name in roster.names)
    assert roster.names == ("north", "south")
    assert roster.keys == tuple(map(fingerprint_in, keys))


@pytest.mark.parametrize("second", ["North", "superlink", "a b", "../up", "ca", ""])
def test_names_that_cannot_name_files_are_not_used(second: str) -> None:
    assert usable_names(["north", second], 2) == usable_names(["north"], 2) == ["site-0", "site-1"]


def test_a_stale_record_is_no_obstacle(
    home: Path, spawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, supernode="print('SuperNode ID: 7', flush=True);" + SLEEP)
    stranger = spawn()
    record(home, daemon(stranger, 3600))
    (home / "lock").touch()
    up(home, 1)
    assert down(home) == 2
    assert stranger.poll() is None


def test_a_superlink_that_ends_is_told_with_its_last_words(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, superlink="print('the port is taken')")
    monkeypatch.setattr(startup, "listening", lambda port: False)
    with pytest.raises(NetworkError, match=r"superlink ended: the port is taken \(all of it in"):
        up(home, 1)
    assert not (home / "processes.json").exists()


def test_when_one_site_fails_nothing_is_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    farewell = "print('ERROR : Exit Code: 305\\nNo way in.\\n[code: 2004] Refused.\\n\\nINFO: bye')"
    fake(monkeypatch, supernode=farewell)
    with pytest.raises(NetworkError, match=r"site-0 ended: No way in\. \[code: 2004\] Refused\."):
        up(home, 2)
    assert not left(home)


def test_who_does_not_come_up_in_time_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, supernode="print('thinking', flush=True);" + SLEEP)
    with pytest.raises(NetworkError, match="site-0 did not come up in time: thinking"):
        up(home, 1, wait=1.0)
    assert not left(home)


@pytest.mark.parametrize(
    "text",
    [
        "site=north",
        'site="a" b',
        'data="x',
        "partition-id=3",
        'a="1" a="2"',
        "memories='x'",
        "privacy_noise=4.0",
    ],
)
def test_node_configs_that_flower_would_choke_on(home: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="node config"):
        up(home, 1, node_configs=[text])
    assert not home.exists()


def test_numbers_that_do_not_fit(home: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        up(home, 0)
    with pytest.raises(ConfigError, match="1 node configs for 2 sites"):
        up(home, 2, node_configs=['site="north"'])


def test_a_site_whose_data_no_run_can_use_is_refused(home: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "north")
    configs = [f'data="folder:{tmp_path}/{name}"' for name in ("north", "nowhere")]
    with pytest.raises(ConfigError, match=r"^site south: data: .*nowhere: no such folder; correct"):
        up(home, 2, node_configs=configs, names=["north", "south"])
    assert not left(home)


def test_a_site_with_a_broken_picture_is_told_and_started(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's config may leave such pictures out."""
    pictures(tmp_path / "north")
    (tmp_path / "north" / "dark" / "1.png").write_text("no picture")
    fake(monkeypatch, supernode="print('SuperNode ID: 7', flush=True);" + SLEEP)
    said = r"^site north: pictures: broken are 1 of 6: dark/1.png .*data\.broken=skip$"
    with pytest.warns(UserWarning, match=said):
        up(home, 1, node_configs=[f'data="folder:{tmp_path}/north"'], names=["north"])
    down(home)


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="not empty"):
        up(tmp_path, 1)


def test_a_damaged_record_is_named(home: Path) -> None:
    home.mkdir()
    (home / "processes.json").write_text("{")
    with pytest.raises(ConfigError, match=r"processes\.json: damaged"):
        down(home)
    (home / "processes.json").unlink()
    (home / "processes.json").mkdir()  # stands for one of another user
    with pytest.raises(ConfigError, match=r"processes\.json: cannot be read"):
        down(home)
    (home / "processes.json").rmdir()


@pytest.mark.parametrize("address", ["", "host", ":local:", "https://x:1", "a b:1", '"\n:1'])
def test_addresses_that_are_none(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        Connection(address, tmp_path)


def test_the_configuration_that_flwr_reads(tmp_path: Path) -> None:
    certificate = tmp_path / 'a "b"' / "ca.crt"
    link = Connection("fl.example.org:443", tmp_path / "flwr", certificate)
    calls.prepare_calls(link)
    path = tmp_path / "flwr" / "config.toml"
    tables = tomllib.loads(path.read_text())["superlink"]
    assert tables[tables["default"]] == {
        "address": "fl.example.org:443",
        "root-certificates": str(certificate),
        "insecure": False,
    }
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text('[superlink]\ndefault = "mine"\n')
    with pytest.raises(ConfigError, match="a Flower home of its own"):
        calls.prepare_calls(link)
    assert "mine" in path.read_text()


def test_the_environment_of_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "script", lambda name: f"/scripts/{name}")
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_FLEET_API", "1")
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.setenv("PATH", "/usr/bin")
    own = calls.environment(tmp_path / "flwr", tmp_path)
    assert "FLWR_INTERNAL_GRPC_FLEET_API" not in own
    assert own["FLWR_TELEMETRY_ENABLED"] == "0"
    assert own["FLWR_HOME"] == str(tmp_path / "flwr")
    assert own[processes.MARKER] == str(tmp_path)
    assert own["PATH"] == "/scripts:/usr/bin"
    assert own["NO_PROXY"] == own["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert processes.MARKER not in calls.environment(tmp_path / "flwr")


def test_runs_are_listed_with_their_times_and_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = {3: "2026-11-16", 9: "2026-11-18", 4: "2026-11-17"}
    rows = [{"run-id": str(run), "status": "x", "pending-at": day} for run, day in days.items()]
    monkeypatch.setattr(calls, "ask", lambda *_: {"runs": rows})
    runs = calls.newest_runs(Connection("127.0.0.1:1", tmp_path, insecure=True))
    assert [(run.run, run.submitted) for run in runs] == [(run, days[run]) for run in (9, 4, 3)]


def test_a_long_experiment_survives_the_way_to_flwr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"experiment": '[a]\nb = "c"\n\'\'\' """ \\ \x7f \t é 😀\n' * 100, "run": "1"}
    seen: dict[str, Any] = {}

    def ask(link: Connection, *words: str) -> dict[str, Any]:
        path = Path(words[words.index("--run-config") + 1])
        seen.update(tomllib.loads(path.read_text()), suffix=path.suffix)
        return {"run-id": "18446744073709551615"}

    monkeypatch.setattr(calls, "ask", ask)
    link = Connection("127.0.0.1:1", tmp_path, insecure=True)
    assert calls.submit(link, tmp_path / "app", config) == 2**64 - 1
    assert seen == {**config, "suffix": ".toml"}
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def answer(monkeypatch: pytest.MonkeyPatch, stdout: str, code: int = 0, stderr: str = "") -> None:
    def call(*_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess([], code, stdout.encode(), stderr.encode())

    monkeypatch.setattr(calls, "script", lambda name: f"/scripts/{name}")
    monkeypatch.setattr(calls, "_call", call)


def test_what_flwr_refuses_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Connection("127.0.0.1:1", tmp_path, insecure=True)
    said = "Using SuperLink: x\\nDisplaying...\\n[code: 16] Run ID not found.\\n"
    answer(monkeypatch, f'{{"success": false, "error-message": "{said}"}}')
    with pytest.raises(ConfigError, match=r"^SuperLink 127\.0\.0\.1:1: Run ID not found\.$"):
        calls.run_status(link, 3)
    said = "Connection to the SuperLink is unavailable. Please check"
    answer(monkeypatch, f'{{"success": false, "error-message": "{said}"}}')
    with pytest.raises(NetworkError, match="cannot be reached"):
        calls.run_status(link, 3)
    answer(monkeypatch, "Traceback\n\x1b[91mBoom\x1b[0m\n", code=1)
    with pytest.raises(NetworkError, match=r"`flwr ls`: Boom$"):
        calls.run_status(link, 3)
    answer(
        monkeypatch, "", code=1, stderr="INFO: x\n╭─ Error ─╮\n│ [code: 16] Not found. │\n╰──╯\n"
    )
    with pytest.raises(ConfigError, match=r"^SuperLink 127\.0\.0\.1:1: Not found\.$"):
        calls.log(link, 3)


def listeners(pids: set[int]) -> set[str]:
    """The local addresses on which these processes listen."""
    sockets = [socket for pid in pids for socket in psutil.Process(pid).net_connections("tcp")]
    return {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}


def started_by_hand(home: Path, link: Connection, name: str, *words: str) -> str:
    """The reason that a further SuperNode gives for ending."""
    port = str(free_ports(1)[0])
    command = [script("flower-supernode"), "--superlink", link.address, "--port", port]
    node = startup.start_daemon(home, name, [*command, *words])
    deadline = time.monotonic() + 60
    while node.alive and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not node.alive
    return startup.last_words(home, node)


@pytest.mark.flower
def test_two_sites_with_tls(home: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "x y")
    south = f'data="folder:{tmp_path}/x y" site="south"'
    link = up(home, 2, tls=True, node_configs=['site="north"', south])
    home = home.resolve()
    seen = status(home)
    assert seen.tls
    assert seen.alive
    assert [(node.partition, node.alive, node.online) for node in seen.nodes] == [
        (0, True, True),
        (1, True, True),
    ]
    assert listeners(left(home)) == {"127.0.0.1"}

    make_keys(tmp_path / "other", ["stranger"])
    ours, theirs = home / "keys", tmp_path / "other"
    key = ("--auth-supernode-private-key", str(theirs / "stranger"))
    why = started_by_hand(home, link, "a", "--root-certificates", str(ours / "ca.crt"), *key)
    assert "Failed to activate SuperNode" in why
    key = ("--auth-supernode-private-key", str(ours / "site-0"))
    why = started_by_hand(home, link, "b", "--root-certificates", str(theirs / "ca.crt"), *key)
    assert "CERTIFICATE_VERIFY_FAILED" in why
    stranger = Connection(link.address, tmp_path / "flwr", theirs / "ca.crt")
    with pytest.raises(NetworkError, match="cannot be reached"):
        calls.run_status(stranger, 1)
    for ask in (calls.stop, calls.log):
        with pytest.raises(ConfigError, match=r"^SuperLink \S+: Run ID not found\.$"):
            ask(link, 1)

    os.kill(seen.nodes[0].pid, signal.SIGKILL)
    assert down(home) >= 4
    assert not left(home)
    assert down(home) == 0
