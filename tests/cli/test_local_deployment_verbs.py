"""What `dcfl flower up`, `down` and an interrupted `run` tell a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dcfl.cli import flower_verbs
from dcfl.errors import Interrupted
from dcfl.experiment import Experiment
from dcfl.flower.deploy import deployment
from dcfl.flower.deploy.submission import Submitted
from dcfl.flower.deploy.superlink import Connection
from dcfl.runs.folder import RecordedRun
from tests.cli.conftest import Call


def test_up_says_what_it_waits_for(unmeasured: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Connection("127.0.0.1:9", Path("home"), None, True)
    monkeypatch.setattr(deployment, "up", lambda *_: link)
    code, out, err = unmeasured("flower", "up", "--sites", "3")
    assert code == 0
    assert "3 online" in out
    assert err == "starting a SuperLink and 3 SuperNodes: up to two minutes\n"


def test_down_says_what_stays(unmeasured: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "down", lambda home: 3)
    code, out, _ = unmeasured("flower", "down")
    assert code == 0
    ended, stays = out.splitlines()
    assert ended == "ended 3 processes"
    assert stays.startswith(".dcfl-flower stays, with logs and keys")


@pytest.mark.parametrize(("how", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
@pytest.mark.parametrize("rounds", [0, 1])
def test_an_interrupted_run_says_how_it_goes_on(
    rounds: int,
    how: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If there is a round to go on from."""

    def interrupted(_: Submitted) -> Any:
        raise how

    stopped: list[Submitted] = []
    monkeypatch.setattr(Submitted, "rows", interrupted)
    monkeypatch.setattr(Submitted, "stop", lambda run: stopped.append(run))
    monkeypatch.setattr(RecordedRun, "rounds", [object()] * rounds)
    run = Submitted(Connection("127.0.0.1:9", tmp_path, None, True), 1, tmp_path / "run")
    with pytest.raises(Interrupted if rounds else type(how)) as caught:
        flower_verbs._follow(run, Experiment(), None)
    assert stopped == [run]
    assert "stopping the run at the SuperLink" in capsys.readouterr().err
    if isinstance(caught.value, Interrupted):
        told = f"stopped; `dcfl flower run --resume {tmp_path / 'run'}` continues it"
        assert (str(caught.value), caught.value.exit_code) == (told, code)
