"""`dcfl resume --rounds`: a longer run is the run that was planned so, to the last bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.engines.engine import Connect
from dcfl.errors import ConfigError, Interrupted, RunFolderError
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.report import write_report
from dcfl.runs.connect import connect
from dcfl.runs.folder import RecordedRun
from dcfl.server import ServerSettings
from dcfl.server.optimizers import OPTIMIZERS
from tests.reliability.victims import (
    SLOW,
    at_nodes,
    command,
    exit_code,
    experiment,
    files,
    in_a_fork,
    kill_in_durable_steps,
    outcome,
    refusal,
    resume,
    same,
    stopped,
    train,
)

ADAM = ServerSettings(optimizer=OPTIMIZERS["fedadam"]())
Settings = dict[str, Any]
STATEFUL: dict[str, Settings] = {
    "plain": {},
    "moon on disk": {"method": "moon", "memory_budget": 0, "participation": 0.67},
    "moon in two processes": {"method": "moon", "workers": 2},
    "scaffold": {"method": "scaffold", "participation": 0.67},
    "prototypes and slots": {"method": "dcfl-pw", "server": ADAM},
    "the best model": {"keep_best": True},
}


def planned(folder: Path, rounds: int, every: int = 1, **settings: Any) -> Experiment:
    what = experiment(folder, rounds=rounds, **{"checkpoint": "auto", **settings})
    return replace(what, federation=replace(what.federation, evaluate_every=every))


@pytest.fixture(scope="module")
def from_the_start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The outcome of a run that was planned with so many rounds."""
    place = tmp_path_factory.mktemp("planned")

    @cache
    def known(rounds: int, every: int, name: str) -> dict[str, Any]:
        folder = place / f"{rounds}-{every}-{name}"
        train(planned(folder, rounds, every, **{**STATEFUL[name], "workers": 1}))
        return outcome(folder)

    return known


@pytest.mark.parametrize("every", [1, 3])  # 4 rounds: the last one is scored only as the last
@pytest.mark.parametrize("name", STATEFUL)
def test_a_finished_run_is_made_longer(
    name: str, every: int, tmp_path: Path, from_the_start: Callable[..., dict[str, Any]]
) -> None:
    train(planned(tmp_path / "run", 4, every, **STATEFUL[name]))
    assert outcome(tmp_path / "run")["rounds"][-1]["accuracy"] is not None
    resume(tmp_path / "run", rounds=7)
    same(tmp_path / "run", from_the_start(7, every, name))
    assert RecordedRun.open(tmp_path / "run").config["federation"]["rounds"] == 7
    resume(tmp_path / "run", rounds=8)  # and once more
    same(tmp_path / "run", from_the_start(8, every, name))


def test_from_a_single_round_that_is_scored_as_the_last(
    tmp_path: Path, from_the_start: Callable[..., dict[str, Any]]
) -> None:
    train(planned(tmp_path / "run", 1, 3, method="moon", memory_budget=0, participation=0.67))
    assert not list(tmp_path.glob("run/checkpoint*"))
    resume(tmp_path / "run", rounds=7)
    same(tmp_path / "run", from_the_start(7, 3, "moon on disk"))


@pytest.mark.parametrize("flower", [False, True])
@pytest.mark.parametrize("rounds", [4, 6, 9])
def test_an_interrupted_run_ends_earlier_or_later(
    rounds: int, flower: bool, tmp_path: Path, from_the_start: Callable[..., dict[str, Any]]
) -> None:
    connection: Connect = at_nodes() if flower else connect
    what = planned(tmp_path / "run", 7, 2, method="moon")
    stopped(what, 4, connection)
    resume(tmp_path / "run", connection, rounds=rounds)
    train(planned(tmp_path / "planned", rounds, 2, method="moon"))
    got, wanted = outcome(tmp_path / "run"), outcome(tmp_path / "planned")
    # Messages have other sizes at nodes.
    for part in ("model",) if flower else ("model", "rounds", "clients", "summary"):
        assert got[part] == wanted[part]


def test_at_nodes_that_keep_memories(tmp_path: Path) -> None:
    connection = at_nodes()
    train(planned(tmp_path / "run", 3, method="moon"), connection)
    resume(tmp_path / "run", connection, rounds=6)
    train(planned(tmp_path / "planned", 6, method="moon"), at_nodes())
    same(tmp_path / "run", outcome(tmp_path / "planned"))


@pytest.mark.slow
def test_an_early_end_is_respected(tmp_path: Path) -> None:
    """A run that has ended early ends there however many rounds it may have."""
    settings: Settings = {"federation.target_accuracy": 30.0, "federation.choose_by": "test"}
    settings |= {"method.name": "fedavg", "output.report": False, "engine.workers": 1}
    short = dcfl.run(out=tmp_path / "run", federation={"rounds": 30}, **settings)
    assert short.summary.stopped
    assert short.summary.rounds < 30
    longer = dcfl.resume(tmp_path / "run", rounds=40)
    assert longer.summary.stopped == short.summary.stopped
    assert longer.summary.weights_sha256 == short.summary.weights_sha256
    # The round that reaches it as the last one is an early end of a longer run.
    last = short.summary.rounds
    exact = dcfl.run(out=tmp_path / "exact", federation={"rounds": last}, **settings)
    assert not exact.summary.stopped
    assert dcfl.resume(tmp_path / "exact", rounds=40).summary.stopped == short.summary.stopped


def test_the_report_forgets_scores_of_the_model_before(tmp_path: Path) -> None:
    settings: Settings = {"method.name": "fedavg", "engine.workers": 1, "data.clients": 4}
    dcfl.run(out=tmp_path / "run", federation={"rounds": 1}, **settings)
    evaluate = command("evaluate", str(tmp_path / "run"), said=tmp_path / "said")
    assert exit_code(evaluate) == 0
    title = "Evaluation</h2>"
    assert title in write_report(tmp_path / "run").read_text()
    dcfl.resume(tmp_path / "run", rounds=2)
    assert title not in (tmp_path / "run" / "report.html").read_text()


def test_what_cannot_be_is_refused_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    train(planned(tmp_path / "run", 4))
    before = {path: (tmp_path / "run" / path).read_bytes() for path in files(tmp_path / "run")}

    def refused(line: str, **settings: Any) -> None:
        assert line in str(refusal(lambda: resume(tmp_path / "run", **settings)))
        now = {path: (tmp_path / "run" / path).read_bytes() for path in files(tmp_path / "run")}
        assert now == before

    refused("has done 4 rounds: it cannot end after 3", rounds=3)
    refused("federation.rounds must be at least 1", rounds=0)
    refused("the run has ended after round 4; there is nothing to resume", rounds=4)
    refused("there is nothing to resume")
    refused("no such key", rounds=5, allow=["federation.rouns"])
    rows = tmp_path / "run" / "rounds.jsonl"
    rows.write_text(rows.read_text().replace('"round": 2', '"round": 3'))
    before["rounds.jsonl"] = rows.read_bytes()
    refused("round 3 where round 2 should be", rounds=6)


def test_a_round_that_was_not_scored_is_not_the_last(tmp_path: Path) -> None:
    folder = stopped(planned(tmp_path / "run", 9, 4), 3)
    assert "which was not scored" in str(refusal(lambda: resume(folder, rounds=3)))
    assert resume(folder, rounds=4).result().summary.rounds == 4


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("output.keep_checkpoint", False, "output.keep_checkpoint = false"),
        ("output.checkpoint", 0, "output.checkpoint = 0"),
    ],
)
def test_without_its_checkpoint_it_stays_as_it_is(
    key: str, value: Any, reason: str, tmp_path: Path
) -> None:
    train(dcfl.load_experiment(planned(tmp_path / "run", 2, method="moon"), **{key: value}))
    assert not list(tmp_path.glob("run/checkpoint*"))
    assert not (tmp_path / "run" / "memories").exists()
    with pytest.raises(RunFolderError, match=f"cannot be made longer: .*{reason}; train it anew"):
        resume(tmp_path / "run", rounds=5)


@pytest.mark.slow
def test_killed_at_any_step_it_goes_on(
    tmp_path: Path, from_the_start: Callable[..., dict[str, Any]]
) -> None:
    """What a user does then: ask again."""
    train(planned(tmp_path / "short", 4, 3, **STATEFUL["moon on disk"]))
    counted = tmp_path / "steps"
    shutil.copytree(tmp_path / "short", tmp_path / "counting")

    def longer(folder: Path, at: int, counted: Path | None = None) -> int:
        def task() -> None:
            kill_in_durable_steps(at, counted)
            resume(folder, rounds=7)

        return in_a_fork(task)

    assert longer(tmp_path / "counting", 0, counted) == 0
    steps = int(counted.read_text())
    assert steps > 40
    for at in range(1, steps + 1, 1 if SLOW else 5):
        folder = tmp_path / f"at{at}"
        shutil.copytree(tmp_path / "short", folder)
        # 0: a thread's steps are not the same in number each time.
        assert longer(folder, at) in (-9, 0)
        recorded = RecordedRun.open(folder)
        if recorded.summary is None or recorded.summary.rounds != 7:
            resume(folder, rounds=7)
        else:
            refusal(lambda: resume(folder, rounds=7))  # noqa: B023
        same(folder, from_the_start(7, 3, "moon on disk"))


def test_the_command(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", tmp_path / "said"
    small = ("federation.rounds=2", "data.clients=4", "engine.workers=1", "method.name=moon")
    assert exit_code(command("run", *small, "--out", str(folder), said=said)) == 0
    assert exit_code(command("resume", str(folder), "--rounds", "1", said=said)) == 2
    assert said.read_text().count("\n") == 1
    assert exit_code(command("resume", str(folder), "--rounds", "3", said=said)) == 0
    assert "round 3/3" in said.read_text()
    assert len(RecordedRun.open(folder).rounds) == 3
    assert exit_code(command("resume", str(folder), "--rounds", "3", said=said)) == 0
    assert "nothing to resume" in said.read_text()
    assert os.path.getmtime(folder / "report.html") > os.path.getmtime(folder / "summary.json")


def test_on_round_sees_every_row_and_may_stop(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(row: dcfl.RoundRow) -> bool:
        seen.append(row.round)
        return row.round < 2

    settings: Settings = {"method": METHODS["fedavg"](), "output.report": False}
    settings |= {"engine.workers": 1, "federation.rounds": 4}
    with pytest.raises(Interrupted):
        dcfl.run(out=tmp_path / "run", on_round=note, **settings)
    assert seen == [1, 2]
    # What was stopped can be ended where it is, or go on.
    assert dcfl.resume(tmp_path / "run", rounds=2).summary.rounds == 2
    rows: list[dcfl.RoundRow] = []
    assert dcfl.resume(tmp_path / "run", rounds=4, on_round=rows.append).summary.rounds == 4
    assert [row.round for row in rows] == [3, 4]
    with pytest.raises(ConfigError, match="cannot end after 3"):
        dcfl.resume(tmp_path / "run", rounds=3)
