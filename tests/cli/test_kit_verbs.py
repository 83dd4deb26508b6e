from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from dcfl.flower.deploy import kit_daemons, superlink
from dcfl.flower.deploy.daemons import free_ports
from dcfl.flower.deploy.kit_folder import open_server
from dcfl.flower.deploy.superlink import RunStatus
from tests.command_line import Call

SUPERLINK = ("--superlink", "fl.example.org:8443")


def test_all_kits_of_a_federation(cli: Call, tmp_path: Path) -> None:
    code, out, err = cli("flower", "kit", "north", "south", "server", *SUPERLINK)
    assert (code, err) == (0, "")
    assert "sites  north, south" in out
    assert "--wheel FILE" in out
    assert {path.name for path in (tmp_path / "kits").iterdir()} == {"north", "south", "server"}
    code, _, err = cli("flower", "kit", "north", *SUPERLINK)
    assert code == 2
    assert "kits/north: is there already" in err
    code, _, err = cli("flower", "kit", "south", *SUPERLINK, "--out", "other")
    assert code == 2
    assert "--sites south,north" in err
    together = ("--sites", "north,south", "--out", "other")
    assert cli("flower", "kit", "south", *SUPERLINK, *together)[0] == 0
    first, again = ((tmp_path / name / "south" / "site.toml") for name in ("kits", "other"))
    assert first.read_text() == again.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("east", "--sites", "north,south", *SUPERLINK), "east: not among the sites"),
        (("server", *SUPERLINK), "which sites are there"),
        (("north", "--superlink", "fl.example.org"), "give host:port"),
        (("north", *SUPERLINK, "--data", "scans"), "give folder:PATH"),
        (("north", *SUPERLINK, "--data", "folder:/a\n\u202e\udc80\x1b[2J"), "give folder:PATH"),
        (("no\nrth", *SUPERLINK), "a name has up to 100 letters"),
    ],
)
def test_what_does_not_fit_makes_no_file(
    words: tuple[str, ...], said: str, cli: Call, tmp_path: Path
) -> None:
    code, _, err = cli("flower", "kit", *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_a_kits_daemon(cli: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cli("flower", "kit", "a", "--superlink", "localhost:9", "--data", "folder:/x")
    config = tmp_path / "kits" / "a" / "site.toml"
    config.write_text(config.read_text().replace("port = 9094", f"port = {free_ports(1)[0]}"))
    code, _, err = cli("flower", "daemon", "status", "kits/a")
    assert (code, err) == (6, "dcfl: nothing is running here; ./start starts it\n")
    program = [
        sys.executable,
        "-c",
        "import time; print('SuperNode ID: 7', flush=True); time.sleep(60)",
    ]
    monkeypatch.setattr(kit_daemons, "supernode_command", lambda *_: program)
    assert cli("flower", "daemon", "start", "kits/a")[:2] == (
        0,
        "connected to localhost:9\n",
    )
    code, out, err = cli("flower", "daemon", "status", "kits/a")
    assert (code, err) == (6, "dcfl: not well: see above\n")  # nobody listens there
    assert "localhost:9  does not answer (Connection refused)" in out
    assert "log        SuperNode ID: 7" in out
    assert cli("flower", "daemon", "stop", "kits/a")[1] == "ended 1 process\n"


def test_a_run_needs_the_kit_of_a_server(cli: Call) -> None:
    cli("flower", "kit", "a", "server", *SUPERLINK)
    code, _, err = cli("flower", "run", "--kit", "kits/a", "data.dataset=remote")
    assert code == 2
    assert "server.toml" in err


def test_a_site_is_added_to_those_that_are_there(cli: Call, tmp_path: Path) -> None:
    cli("flower", "kit", "north", "server", *SUPERLINK)
    before = (tmp_path / "kits" / "north" / "site.toml").read_bytes()
    code, out, err = cli("flower", "kit", "west", "--add", *SUPERLINK)
    assert (code, err) == (0, "")
    assert "server ./add west.pub" in out
    pub = "kits/west/keys/west.pub"
    code, out, _ = cli("flower", "daemon", "add", "kits/server", pub)
    assert (code, out) == (0, "added  west; runs that begin from now on include it\n")
    server = open_server(tmp_path / "kits" / "server")
    assert server.sites == ("north", "west")
    assert all(key.is_file() for key in server.public_keys)
    assert (tmp_path / "kits" / "north" / "site.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kit", "north", "--add", *SUPERLINK, "--out", "more"), "north: is a site already, by "),
        (("kit", "west", "--add", *SUPERLINK, "--keys", "none"), "none: has no site's key"),
        (("kit", "server", "--add", "--sites", "west", *SUPERLINK), "the server's kit stays"),
        (("kit", "west", *SUPERLINK), "name all sites with --sites west,north, or a new one with"),
        (("daemon", "add", "kits/server", "keys/north.pub"), "two sites have the same name"),
        (("daemon", "add", "kits/server", "other.pub"), "is the key of another site already"),
    ],
)
def test_what_cannot_be_added_is_said(
    words: tuple[str, ...], said: str, cli: Call, tmp_path: Path
) -> None:
    cli("flower", "kit", "north", "server", *SUPERLINK)
    shutil.copy(tmp_path / "keys" / "north.pub", tmp_path / "other.pub")
    text = (tmp_path / "kits" / "server" / "server.toml").read_text()
    code, _, err = cli("flower", *words)
    assert code == 2
    assert said in err
    assert (tmp_path / "kits" / "server" / "server.toml").read_text() == text


@pytest.mark.parametrize(("going", "said"), [((), "no run goes on"), ((7, 8), "which run? ")])
def test_a_run_to_stop_is_named_if_need_be(
    going: tuple[int, ...], said: str, cli: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("flower", "kit", "a", "server", *SUPERLINK)
    runs = [RunStatus(run, "running", "today") for run in going]
    runs += [RunStatus(1, "finished:completed", "")]
    monkeypatch.setattr(superlink, "newest_runs", lambda link: tuple(runs))
    stopped: list[int] = []
    monkeypatch.setattr(superlink, "stop", lambda link, run: stopped.append(run))
    code, _, err = cli("flower", "stop", "--kit", "kits/server")
    assert code == 2
    assert said in err
    assert all(f"running  {run}" in err for run in going)
    if going:
        code, out, _ = cli("flower", "stop", "8", "--kit", "kits/server")
        assert (code, stopped) == (0, [8])
        assert "stopped run 8; `dcfl flower run --resume DIR`" in out
