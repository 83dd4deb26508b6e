"""A process that trains in half precision must not die of what the CPU claims to have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dcfl
from dcfl.engines import half_precision as instructions
from dcfl.engines import runner
from dcfl.errors import ConfigError

BFLOAT16 = ("engine.precision=bfloat16", "engine.workers=1", "federation.rounds=1")


@pytest.mark.slow
def test_a_run_in_bfloat16_survives_this_cpu(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != instructions.LIMIT}
    done = subprocess.run(
        [sys.executable, "-m", "dcfl", "run", *BFLOAT16, "--out", str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    instructions.avoid_broken_instructions.cache_clear()


@pytest.mark.usefixtures("no_limit")
@pytest.mark.parametrize(
    ("advertised", "works", "limit"),
    [(True, False, instructions.WITHOUT_AMX), (True, True, None), (False, False, None)],
)
def test_amx_is_left_alone_only_where_it_kills(
    advertised: bool, works: bool, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instructions, "_advertises_amx", lambda: advertised)
    monkeypatch.setattr(instructions, "half_precision_works", lambda: works)
    instructions.avoid_broken_instructions()
    assert os.environ.get(instructions.LIMIT) == limit


@pytest.mark.usefixtures("no_limit")
def test_a_limit_of_the_users_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "_advertises_amx", lambda: True)
    monkeypatch.setattr(instructions, "half_precision_works", lambda: False)
    os.environ[instructions.LIMIT] = "AVX2"
    instructions.avoid_broken_instructions()
    assert os.environ[instructions.LIMIT] == "AVX2"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="tried in a forked process")
def test_a_process_that_dies_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert instructions.half_precision_works()  # this process was told what to leave alone
    monkeypatch.setattr(instructions.torch, "ones", lambda *_, **__: os.kill(os.getpid(), 4))
    assert not instructions.half_precision_works()


def test_too_late_to_help_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "half_precision_works", lambda: False)
    with pytest.raises(ConfigError, match=f"set {instructions.LIMIT}="):
        dcfl.run(engine={"precision": "bfloat16"}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
