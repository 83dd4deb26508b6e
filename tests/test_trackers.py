"""Trackers: each against its real library, on this disk; and one's own, however it behaves."""

from __future__ import annotations

import csv
import doctest
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import dcfl
from dcfl.errors import ConfigError, Interrupted, RunFolderError
from dcfl.experiment import TrackerName
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow, Summary
from dcfl.runs.run import Run
from dcfl.trackers import TRACKERS, FollowedRun, Tracker, without_secrets
from tests.reliability.victims import DATA, MODEL, experiment, outcome, refusal

Curve = list[tuple[int, float]]  # the accuracy after each round


def training(
    folder: Path, names: Sequence[TrackerName] = (), own: Sequence[Any] = (), rounds: int = 4
) -> Run:
    what = experiment(folder, "moon", rounds=rounds)
    what = replace(what, output=replace(what.output, trackers=tuple(names)))
    return Run(what, DATA, MODEL, trackers=own)


def resumed(folder: Path, own: Sequence[Any] = (), rounds: int | None = None) -> Run:
    return Run.resume(folder, DATA, MODEL, rounds=rounds, trackers=own)


def followed(run: Run, stop_after: int = 0) -> list[RoundRow]:
    rows = []
    for row in run.rounds():
        rows.append(row)
        if row.round == stop_after:
            run.stop()
    return rows


# By name ------------------------------------------------------------------------------------------


def in_csv(folder: Path) -> Curve:
    with (folder / "rounds.csv").open() as stream:
        return [(int(row["round"]), float(row["accuracy"])) for row in csv.DictReader(stream)]


def in_tensorboard(folder: Path) -> Curve:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars("accuracy")]


READERS: dict[TrackerName, Callable[[Path], Curve]] = {
    "csv": in_csv,
    "tensorboard": in_tensorboard,
}


def test_every_name_has_its_tracker() -> None:
    assert set(TRACKERS) == set(get_args(TrackerName)) == set(READERS)


@pytest.mark.parametrize("name", READERS)
def test_it_follows_a_run_that_is_stopped_resumed_and_made_longer(
    name: TrackerName, tmp_path: Path
) -> None:
    if name != "csv":
        pytest.importorskip(name, reason=f"needs pip install 'dcfl[{name}]'")
    folder = tmp_path / "followed"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the tracker")
        run = training(folder, [name])
        with pytest.raises(Interrupted):
            followed(run, stop_after=2)
        followed(resumed(folder))
        followed(resumed(folder, rounds=6))
    wanted = [(row.round, row.accuracy) for row in RecordedRun.open(folder).rounds]
    got = READERS[name](folder)
    assert [round for round, _ in got] == [1, 2, 3, 4, 5, 6] == [round for round, _ in wanted]
    assert [value for _, value in got] == pytest.approx([value for _, value in wanted])


def test_rounds_that_are_repeated_appear_once(tmp_path: Path) -> None:
    """A killed run goes on from a checkpoint that is older than what trackers saw."""
    pytest.importorskip("tensorboard", reason="needs pip install 'dcfl[tensorboard]'")
    folder = tmp_path / "run"
    run = training(folder, ["csv", "tensorboard"])
    rounds = run.rounds()
    for _ in range(3):
        next(rounds)
    rounds.close()
    (folder / "checkpoint-000003.safetensors").unlink(missing_ok=True)
    followed(resumed(folder))
    assert [round for round, _ in in_csv(folder)] == [1, 2, 3, 4]
    assert [round for round, _ in in_tensorboard(folder)] == [1, 2, 3, 4]


def test_a_library_that_is_not_there_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.warns(
        UserWarning, match=r"the tracker tensorboard .* pip install .*'dcfl\[tensorboard\]'"
    ):
        assert len(followed(training(tmp_path / "run", ["tensorboard", "csv"]))) == 4
    assert len(in_csv(tmp_path / "run")) == 4


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    """A run folder that is resumed may come from somebody else."""
    pytest.importorskip("tensorboard", reason="needs pip install 'dcfl[tensorboard]'")
    with pytest.raises(Interrupted):
        followed(training(tmp_path / "run", ["tensorboard"]), stop_after=1)
    shutil.rmtree(tmp_path / "run" / "tensorboard")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="tensorboard is a link"):
        followed(resumed(tmp_path / "run"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_bad_names_are_refused(tmp_path: Path) -> None:
    def asking(*names: str) -> None:
        dcfl.load_experiment(output={"trackers": list(names)})

    assert "must be a list, each" in str(refusal(lambda: asking("tensorbord")))
    with pytest.raises(ConfigError, match="each may be named once"):
        asking("csv", "csv")


# One's own ----------------------------------------------------------------------------------------


class Noting:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def start(self, run: FollowedRun) -> None:
        self.run = run
        self.seen.append("start")

    def round(self, row: RoundRow) -> None:
        self.seen.append(row.round)

    def finish(self, summary: Summary | None) -> None:
        self.seen.append(summary and summary.rounds)


class Failing(Noting):
    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def start(self, run: FollowedRun) -> None:
        super().start(run)
        self._fail("start")

    def round(self, row: RoundRow) -> None:
        super().round(row)
        self._fail("round")

    def finish(self, summary: Summary | None) -> None:
        super().finish(summary)
        self._fail("finish")

    def _fail(self, where: str) -> None:
        # Whatever it does to what others use.
        torch.manual_seed(random.randrange(10**6))
        random.seed(0)
        if where == self.at:
            raise RuntimeError(f"cannot {where}\nbecause of postgresql://me:hunter22@host/db")


def test_it_sees_the_run_from_start_to_end(tmp_path: Path) -> None:
    tracker = Noting()
    followed(training(tmp_path / "run", own=[tracker]))
    assert tracker.seen == ["start", 1, 2, 3, 4, 4]
    assert tracker.run.name == "run"
    assert tracker.run.settings["method.name"] == "moon"
    assert not any(key.startswith(("output.", "engine.device")) for key in tracker.run.settings)
    again, before = Noting(), tracker.run
    followed(resumed(tmp_path / "run", [again], rounds=6))
    assert again.seen == ["start", 5, 6, 6]
    assert (again.run.id, again.run.rounds_done) == (before.id, 4)


def test_a_stopped_run_says_so(tmp_path: Path) -> None:
    tracker = Noting()
    with pytest.raises(Interrupted):
        followed(training(tmp_path / "run", own=[tracker]), stop_after=1)
    assert tracker.seen == ["start", 1, None]


@pytest.mark.parametrize("at", ["start", "round", "finish"])
def test_one_that_fails_costs_one_warning_and_no_bit(at: str, tmp_path: Path) -> None:
    followed(training(tmp_path / "alone"))
    failing, noting = Failing(at), Noting()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        followed(training(tmp_path / "run", own=[failing, noting]))
    (text,) = [str(one.message) for one in said if "tracker" in str(one.message)]
    assert text == (
        f"the tracker Failing has failed and no longer follows the run: cannot {at} because of "
        f"postgresql://...@host/db"
    )
    assert noting.seen == ["start", 1, 2, 3, 4, 4]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "alone")


def test_warnings_have_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    assert (
        without_secrets("key 0123456789abcdef of https://u:p@h/x") == "key ... of https://...@h/x"
    )


def test_what_a_library_prints_is_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dcfl.trackers.ToCSV.round", lambda self, row: print("a round"))
    followed(training(tmp_path / "run", ["csv"]))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("a round") == 4


def test_the_example_of_the_protocol_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(Tracker, "Tracker")
    assert doctest.DocTestRunner().run(example).failed == 0
