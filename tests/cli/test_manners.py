"""How the command line behaves towards people, pipes and small terminals."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.core import TyperGroup

from dcfl.cli.main import app
from dcfl.cli.terminal import duration, new_table, short_duration
from dcfl.runs.folder import RecordedRun
from tests.cli.test_main import FAST
from tests.command_line import Call

DCFL = [sys.executable, "-m", "dcfl"]

CRASHING = """
import torch
import dcfl

class Crashing(dcfl.Method):
    def objective(self, client):
        return lambda batch: torch.zeros(3) @ torch.zeros(4)
"""


def on_a_terminal(words: list[str], **environment: str) -> str:
    """What `dcfl WORDS` shows there."""
    ours, theirs = pty.openpty()
    done = subprocess.Popen([*DCFL, *words], stdout=theirs, env={**os.environ, **environment})
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # Linux says so at the end
        pass
    os.close(ours)
    assert done.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def test_the_first_reason_of_a_failure_is_said_while_training(
    cli: Call,
    tmp_path: Path,
) -> None:
    (tmp_path / "crashing.py").write_text(CRASHING)
    words = ("federation.rounds=2", "engine.workers=1", "--out", "run")
    code, _, err = cli("run", "--method-file", "crashing.py", *words)
    assert code == 4
    told = [line for line in err.splitlines() if "RuntimeError" in line]
    assert len(told) == 1
    first = next(RecordedRun(tmp_path / "run").each_client())
    assert told[0].startswith(f"dcfl: warning: round 1: client {first.client} failed: RuntimeError")
    assert "(crashing.py:7); 5 clients were lost" in told[0]
    assert err.index("RuntimeError") < err.index("round 1/2")


def test_quiet_leaves_results_and_warnings(cli: Call, tmp_path: Path) -> None:
    faults = ("faults.crash=0.5", "engine.workers=1")
    code, out, err = cli("run", *FAST, *faults, "federation.participation=0.5", "--quiet")
    assert code == 0
    assert "dcfl-pw on digits: accuracy" in out
    assert [line.partition(": warning: ")[0] for line in err.splitlines()] == ["dcfl"]
    code, out, err = cli("run", *FAST, "--dry-run", "--quiet", "--json")
    assert (code, err) == (0, "")
    assert {"seconds", "peak_bytes", "bytes_up", "bytes_down"} <= json.loads(out).keys()
    assert cli("run", *FAST)[2].count("round") > 0  # the next command is not quiet
    code, out, _ = cli("--quiet")
    assert (code, "dcfl --help" in out) == (0, True)


@pytest.mark.slow
def test_a_dry_run_shows_the_settings_that_the_run_would_record(
    cli: Call,
    tmp_path: Path,
) -> None:
    words = (*FAST, "output.report=false", "--out", "here")
    _, out, _ = cli("run", *words, "--dry-run")
    settings, _, card = out.partition("\n\nwhat ")
    assert [line.split()[0] for line in card.splitlines()[1:]][:3] == ["clients", "time", "memory"]
    assert not (tmp_path / "here").exists()
    _, out, _ = cli("run", *words, "--dry-run", "--json")
    assert cli("run", *words)[0] == 0
    assert (tmp_path / "here" / "config.toml").read_text() == settings + "\n"
    recorded = RecordedRun(tmp_path / "here").config
    assert json.loads(out)["config"] == recorded


def test_settings_in_json_are_those_in_toml(cli: Call) -> None:
    tables = json.loads(cli("settings", "data.alpha=0.7", "--json")[1])
    assert tables["data"]["alpha"] == 0.7
    assert set(tables) >= {"data", "model", "method", "federation", "output"}


@pytest.mark.parametrize("words", ["pa", "flower u", "run --dr", "data "])
def test_the_shell_completes_without_torch(words: str) -> None:
    wanted = {"pa": "partition", "flower u": "up", "run --dr": "--dry-run", "data ": "check\nget"}
    line = f"dcfl {words}"
    environment = {
        **os.environ,
        "_DCFL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    code = "import sys; sys.argv = ['dcfl']\nfrom dcfl.cli.main import main\n"
    code += "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert sorted(done.stdout.decode().split()) == wanted[words].split()
    assert not {"torch", "numpy", "matplotlib"} & {*done.stderr.decode().split()}


def test_completion_can_be_installed(tmp_path: Path) -> None:
    # Typer asks which shell it was started from, which in tests may be none that it knows.
    told = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    command = [*DCFL, "--install-completion", "bash"]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True)
    assert "completion installed" in done.stdout, done.stderr
    assert done.returncode == 0
    assert "_DCFL_COMPLETE" in (tmp_path / ".bash_completions" / "dcfl.sh").read_text()


@pytest.mark.slow
def test_no_color_means_no_escapes_and_a_narrow_terminal_loses_nothing() -> None:
    words = ["partition", "data.clients=2"]
    assert "\x1b[" in on_a_terminal(words, COLUMNS="100", TERM="xterm-256color", NO_COLOR="")
    plain = on_a_terminal(words, COLUMNS="100", TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[" not in plain
    narrow = on_a_terminal(words, COLUMNS="20", TERM="xterm-256color", NO_COLOR="1")
    assert "…" not in narrow
    assert narrow.splitlines()[:3] == ["client   0", "samples  721", "classes  8"]


@pytest.mark.parametrize("width", [1, 20, 24, 80])
def test_a_table_shows_every_cell_at_every_width(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table("method", "MAX %", "EMA %", title="three seeds")
    table.add_row("fedavg", "91.25", "90.50")
    table.add_row("[red]dcfl", "92.75", "")
    Console(width=width, markup=False, highlight=False, soft_wrap=False).print(table)
    shown = capsys.readouterr().out
    assert "…" not in shown
    for cell in ("fedavg", "91.25", "90.50", "[red]dcfl", "92.75"):
        assert cell in shown if width > 1 else cell in shown.replace("\n", "")
    assert ("method  fedavg\n" in shown) == (width == 20)


def test_a_pipe_that_closes_is_silent() -> None:
    command = f"{sys.executable} -m dcfl methods | head -1; echo ${{PIPESTATUS[@]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("fedavg\n0 0\n", "")


# Verbs that show no table: they write files, follow a program or answer in a line.
WITHOUT_TABLE = {
    "embed", "export", "watch", "new method", "new model", "new config", "data get", "demo",
    "flower up", "flower down", "flower kit", "flower daemon run",
    "flower daemon start", "flower daemon stop", "flower daemon add", "flower supernode",
    "flower personal", "flower stop",
}  # fmt: skip


def verbs(command: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(command, TyperGroup):
        return {name: command}
    inside = [verbs(inner, f"{name} {word}".strip()) for word, inner in command.commands.items()]
    own = {name: command} if name and command.invoke_without_command else {}
    return own | {key: value for found in inside for key, value in found.items()}


def test_whatever_shows_a_table_has_json_too() -> None:
    every = verbs(typer.main.get_command(app))
    with_json = {
        name
        for name, command in every.items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(every) - with_json == WITHOUT_TABLE


def test_one_second_is_one_second() -> None:
    assert [duration(s) for s in (0.996, 1.0, 1.04, 1.6, 9.97)] == [
        "1 second", "1 second", "1 second", "1.6 seconds", "10 seconds",
    ]  # fmt: skip
    shown = [short_duration(s) for s in (0, 0.4, 1, 59, 120, 7200, 1e6)]
    assert shown == ["< 1 s", "< 1 s", "1 s", "59 s", "2.0 min", "2.0 h", "11.6 d"]
