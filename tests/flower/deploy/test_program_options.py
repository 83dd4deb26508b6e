from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcfl.errors import ConfigError
from dcfl.flower.deploy import commands as program_options
from dcfl.flower.deploy.commands import (
    command_line,
    options_of,
    superlink_command,
    supernode_command,
)

HELP = b"""usage: flower-supernode [-h] [--port PORT]

options:
  -h, --help            show this help message and exit
  --superlink SUPERLINK
                        its address; not with
                        --insecure
  --old-name NAME       \x1b[1mthe\x1b[0m one before the last
"""


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> Any:
    def say(text: bytes) -> None:
        options_of.cache_clear()
        answer = SimpleNamespace(stdout=text)
        run = "dcfl.flower.deploy.commands.subprocess.run"
        monkeypatch.setattr(run, lambda *_, **__: answer)
        monkeypatch.setattr(program_options, "script", lambda name: f"/bin/{name}")

    yield say
    options_of.cache_clear()


def test_options_are_asked_of_the_program(helped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    helped(HELP)
    monkeypatch.setitem(program_options._SPELLINGS, "name", ("--new-name", "--old-name"))
    assert options_of("flower-supernode") == {"--help", "--superlink", "--old-name"}
    line = command_line("flower-supernode", {"superlink": "a:1", "name": True, "insecure": False})
    assert line == ["/bin/flower-supernode", "--superlink", "a:1", "--old-name"]


def test_an_option_that_is_gone_is_named(helped: Any) -> None:
    helped(HELP)
    with pytest.raises(
        ConfigError, match=r"flwr [\d.]+ has no option --root-certificates; .*1\.41"
    ):
        command_line("flower-supernode", {"root-certificate": "ca.crt"})


def test_a_program_that_says_nothing_is_named(helped: Any) -> None:
    helped(b"")
    with pytest.raises(ConfigError, match="names no options"):
        command_line("flower-superlink", {"port": "1"})


@pytest.mark.flower
def test_the_installed_flower_has_what_we_need() -> None:
    path = Path("/x")
    for keys in (None, path):
        assert superlink_command(1, path, keys)[1:3] == ["--host", "127.0.0.1"]
    for pair in (None, (path, path)):
        assert "--node-config" in supernode_command("a:1", 2, "x=1", pair)
