from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dcfl.flower.deploy import kit_daemons
from dcfl.flower.deploy.daemons import free_ports
from tests.cli.conftest import Call

SUPERLINK = ("--superlink", "fl.example.org:8443")


def test_all_kits_of_a_federation(unmeasured: Call, tmp_path: Path) -> None:
    code, out, err = unmeasured("flower", "kit", "north", "south", "server", *SUPERLINK)
    assert (code, err) == (0, "")
    assert "sites  0 north, 1 south" in out
    assert "--wheel FILE" in out
    assert {path.name for path in (tmp_path / "kits").iterdir()} == {"north", "south", "server"}
    code, _, err = unmeasured("flower", "kit", "north", *SUPERLINK)
    assert code == 2
    assert "kits/north: is there already" in err
    code, _, err = unmeasured("flower", "kit", "south", *SUPERLINK, "--out", "other")
    assert code == 2
    assert "--sites south,north" in err
    together = ("--sites", "north,south", "--out", "other")
    assert unmeasured("flower", "kit", "south", *SUPERLINK, *together)[0] == 0
    first, again = ((tmp_path / name / "south" / "site.toml") for name in ("kits", "other"))
    assert first.read_text() == again.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("east", "--sites", "north,south", *SUPERLINK), "east: not among the sites"),
        (("server", *SUPERLINK), "which sites are there"),
        (("north", "--superlink", "fl.example.org"), "give host:port"),
        (("north", *SUPERLINK, "--data", "scans"), "give folder:PATH"),
    ],
)
def test_what_does_not_fit_makes_no_file(
    words: tuple[str, ...], said: str, unmeasured: Call, tmp_path: Path
) -> None:
    code, _, err = unmeasured("flower", "kit", *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_a_kits_daemon(unmeasured: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unmeasured("flower", "kit", "a", "--superlink", "localhost:9", "--data", "folder:/x")
    config = tmp_path / "kits" / "a" / "site.toml"
    config.write_text(config.read_text().replace("port = 9094", f"port = {free_ports(1)[0]}"))
    code, _, err = unmeasured("flower", "daemon", "status", "kits/a")
    assert (code, err) == (6, "dcfl: nothing is running here; ./start starts it\n")
    program = [
        sys.executable,
        "-c",
        "import time; print('SuperNode ID: 7', flush=True); time.sleep(60)",
    ]
    monkeypatch.setattr(kit_daemons, "supernode_command", lambda *_: program)
    assert unmeasured("flower", "daemon", "start", "kits/a")[:2] == (
        0,
        "connected to localhost:9\n",
    )
    code, out, err = unmeasured("flower", "daemon", "status", "kits/a")
    assert (code, err) == (6, "dcfl: not well: see above\n")  # nobody listens there
    assert "localhost:9  does not answer (Connection refused)" in out
    assert "log        SuperNode ID: 7" in out
    assert unmeasured("flower", "daemon", "stop", "kits/a")[1] == "ended 1 process\n"


def test_a_run_takes_the_server_from_one_place(unmeasured: Call) -> None:
    unmeasured("flower", "kit", "a", "server", *SUPERLINK)
    code, _, err = unmeasured("flower", "run", "--kit", "kits/server", "--sites", "1")
    assert code == 2
    assert "leave them out" in err
    code, _, err = unmeasured("flower", "run", "--kit", "kits/a", "data.dataset=remote")
    assert code == 2
    assert "server.toml" in err
