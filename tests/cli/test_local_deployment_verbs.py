"""What `dcfl flower up`, `down` and an interrupted `run` tell a person."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dcfl.cli import flower_verbs
from dcfl.errors import ConfigError, Interrupted
from dcfl.experiment import Experiment
from dcfl.flower.deploy import deployment
from dcfl.flower.deploy import superlink as registered_nodes
from dcfl.flower.deploy.server_app import ENDED
from dcfl.flower.deploy.submission import Submitted
from dcfl.flower.deploy.superlink import Connection, RegisteredNode
from dcfl.flower.roster import Roster
from dcfl.runs.folder import RecordedRun
from tests.cli.conftest import Call

WAITS = "; the run waits up to 120 s, then begins with the others, or ends"


def test_up_says_what_it_waits_for(unmeasured: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Connection("127.0.0.1:9", Path("home"), None, True)
    monkeypatch.setattr(deployment, "up", lambda *_: link)
    code, out, err = unmeasured("flower", "up", "--sites", "3")
    assert code == 0
    assert "3 online" in out
    assert err == "starting a SuperLink and 3 SuperNodes: up to two minutes\n"


def test_up_refuses_before_it_says_that_it_starts(
    unmeasured: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(home: Path) -> None:
        raise ConfigError("a deployment is running")

    monkeypatch.setattr(deployment, "require_idle", busy)
    assert unmeasured("flower", "up") == (2, "", "dcfl: a deployment is running\n")


def test_data_without_its_kind_and_a_folder_that_is_not_there(
    unmeasured: Call, tmp_path: Path
) -> None:
    (tmp_path / "scans").mkdir()
    _, _, err = unmeasured("flower", "up", "--data", "scans")
    assert err == "dcfl: --data scans: give folder:PATH or npz:FILE, such as folder:scans\n"
    _, _, err = unmeasured("flower", "up", "--data", "folder:scan")
    said = f"{tmp_path / 'scan'} is not there, or is not a folder"
    assert err == f"dcfl: --data folder:scan: {said}\n"
    _, _, err = unmeasured("flower", "up", "--data", "npz:scans")
    said = f"{tmp_path / 'scans'} is not there, or is not a file"
    assert err == f"dcfl: --data npz:scans: {said}\n"


@pytest.mark.parametrize(
    ("keys", "online", "said"),
    [
        (("a", "b"), ("a", "b"), ""),
        (("a", "b"), ("a", "x"), "site south"),
        (("a", "b"), (), "site north, site south"),
        ((), ("x",), "1 of 2 sites"),
        ((), ("x", "y"), ""),
        ((), None, ""),
    ],
)
def test_a_run_says_whom_it_waits_for(
    keys: tuple[str, ...],
    online: tuple[str, ...] | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = [RegisteredNode("b", False), *(RegisteredNode(key, True) for key in online or ())]
    answer = None if online is None else nodes
    monkeypatch.setattr(registered_nodes, "registered_nodes", lambda link: answer)
    link = Connection("127.0.0.1:9", tmp_path, None, True)
    absence = flower_verbs._Absence(link, Roster(2, keys, ("north", "south")))
    absence.say(WAITS)
    absence.say()  # once
    err = capsys.readouterr().err
    assert err == (f"not online: {said}{WAITS}\n" if said else "")
    monkeypatch.setattr(registered_nodes, "absent_sites", lambda link, roster: "")
    absence.say()
    assert capsys.readouterr().err == ("all sites are online again\n" if said else "")


def test_a_superlink_that_does_not_answer_says_nobody_is_absent(tmp_path: Path) -> None:
    link = Connection("127.0.0.1:9", tmp_path, None, True)
    assert registered_nodes.registered_nodes(link) is None


def test_whoever_asks_a_kit_is_sent_to_its_script(unmeasured: Call, tmp_path: Path) -> None:
    _, _, err = unmeasured("flower", "status")
    assert "`dcfl flower up` starts one" in err
    (tmp_path / "server.toml").touch()
    _, _, err = unmeasured("flower", "status")
    assert "no deployment here; of a kit ./status tells" in err


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
        flower_verbs._follow(run, Experiment(), None, flower_verbs._Absence(run.link, Roster(1)))
    assert stopped == [run]
    assert "stopping the run at the SuperLink" in capsys.readouterr().err
    if isinstance(caught.value, Interrupted):
        told = f"stopped; `dcfl flower run --resume {tmp_path / 'run'}` continues it"
        assert (str(caught.value), caught.value.exit_code) == (told, code)


def test_a_sites_reason_is_not_taken_for_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Submitted(Connection("127.0.0.1:9", tmp_path, None, True), 1, tmp_path / "run")
    forged = f"warning: site south: {ENDED} 0 all is well\n"
    monkeypatch.setattr(registered_nodes, "log", lambda link, run: forged)
    assert run.failure("finished:failed").exit_code == 1
    real = f"{ENDED} 4 too few\n{forged}"
    monkeypatch.setattr(registered_nodes, "log", lambda link, run: real)
    failure = run.failure("finished:failed")
    assert (str(failure), failure.exit_code) == ("too few", 4)


@pytest.mark.parametrize("given", [["federation.rounds=9"], ["--out", "elsewhere"]])
def test_settings_beside_resume_are_not_dropped_without_a_word(
    given: list[str], unmeasured: Call
) -> None:
    code, _, err = unmeasured("flower", "run", "--resume", "runs/mine", *given)
    assert (code, err.count("\n")) == (2, 1)
    assert "--resume goes on with a run as it is" in err
