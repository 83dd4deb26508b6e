"""Sweeps from beginning to end, on a few digits."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import dcfl
from dcfl.comparisons.crew import Crew, News, Trainer
from dcfl.comparisons.groups import setting
from dcfl.comparisons.sweeping import SweepResult
from dcfl.config import experiment_from
from dcfl.errors import ConfigError, Interrupted, RunFolderError, TooFewClients
from dcfl.runs.folder import RecordedRun
from tests.comparisons.small_sweeps import tiny_sweep
from tests.reliability.test_lock import is_free
from tests.reliability.victims import rows_in, until


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    return tiny_sweep(tmp_path_factory.mktemp("sweep") / "out").carry_out(parallel=1)


@pytest.fixture
def nothing_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Trainer, folder: Path, experiment: object) -> Iterator[None]:
        raise AssertionError(f"{folder} was trained")
        yield

    monkeypatch.setattr(Trainer, "_rounds", refuse)


def test_four_trials_and_a_choice(swept: SweepResult) -> None:
    assert [tuple(trial.point.values()) for trial in swept.trials] == [
        (0.01, 0.01), (0.01, 1), (0.2, 0.01), (0.2, 1),
    ]  # fmt: skip
    scores = [trial.score for trial in swept.trials]
    assert swept.chosen.score == max(scores)
    assert [trial.score for trial in swept.ranked] == sorted(scores, reverse=True)


def test_the_test_images_are_for_the_chosen_point_alone(swept: SweepResult) -> None:
    trials = [RecordedRun.open(path.parent) for path in swept.folder.glob("trials/*/config.toml")]
    assert [setting(run, "data.holdout") for run in trials] == [0.1] * 4
    (chosen,) = (path.parent for path in swept.folder.glob("chosen/*/config.toml"))
    run = RecordedRun.open(chosen)
    assert setting(run, "data.holdout") == 0.0
    assert run.summary is not None
    assert swept.test.spread is not None
    assert swept.test.spread.mean == run.summary.ema_accuracy


def test_a_trial_is_the_run_that_it_says(swept: SweepResult, tmp_path: Path) -> None:
    """To the last bit, also from its config and from that of the chosen setting."""
    trial = swept.trials[1].cells[0]
    alone = dcfl.run(trial.path / "config.toml", out=tmp_path / "alone")
    assert trial.run is not None
    assert trial.run.summary is not None
    assert alone.summary.weights_sha256 == trial.run.summary.weights_sha256
    best = dcfl.run(swept.config, out=tmp_path / "best")
    (chosen,) = swept.test.trial.cells
    summary = RecordedRun.open(chosen.path).summary
    assert summary is not None
    assert best.summary.weights_sha256 == summary.weights_sha256


def test_the_files_say_what_was_found(swept: SweepResult) -> None:
    with (swept.folder / "trials.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["trial"]) for row in rows] == [trial.number for trial in swept.ranked]
    assert {row["state"] for row in rows} == {"finished"}
    page = swept.report.read_text()
    for words in ("kept-back images", "Scores", "method.mu", "The chosen setting"):
        assert words in page
    assert page.count("data-chart=") == 1


@pytest.mark.usefixtures("nothing_trains")
def test_what_is_finished_is_not_trained_again(swept: SweepResult) -> None:
    again = tiny_sweep(swept.folder).carry_out(parallel=1)
    assert again.as_json() == swept.as_json()


@pytest.mark.usefixtures("nothing_trains")
def test_other_folders_are_used_where_the_experiment_is_the_same(
    swept: SweepResult, tmp_path: Path
) -> None:
    again = tiny_sweep(tmp_path / "new", reuse=[swept.folder]).carry_out(parallel=1)
    assert again.chosen.point == swept.chosen.point
    assert again.test.spread == swept.test.spread
    assert not list((tmp_path / "new" / "trials").iterdir())
    other = tiny_sweep(tmp_path / "other", reuse=[swept.folder], data={"clients": 5})
    assert len(other.todo) == 4
    for crop, left in ((1, 0), (2, 4)):  # "auto" stood for 1
        data = {**DATA, "crop": crop}
        assert len(tiny_sweep(tmp_path / "crop", reuse=[swept.folder], data=data).todo) == left


DATA = {"clients": 4, "train_images": 200, "test_images": 100}


def test_a_comparison_and_a_sweep_share_their_runs(tmp_path: Path) -> None:
    plan = tiny_sweep(tmp_path / "sweep", ["method.mu=0.01,1"])
    (chosen,) = plan.trials.chosen(plan.planned[1]).cells
    compared = dcfl.compare(
        chosen.experiment, methods=["fedprox"], out=tmp_path / "cmp", parallel=1
    )
    again = tiny_sweep(tmp_path / "sweep", ["method.mu=0.01,1"], reuse=[compared.folder])
    (found,) = again.trials.chosen(again.planned[1]).cells
    assert found.path == tmp_path / "cmp" / "fedprox-seed0"


def test_it_may_be_added_to_but_not_changed(tmp_path: Path) -> None:
    tiny_sweep(tmp_path, ["training.lr=0.1,0.2"]).carry_out(parallel=1)
    more = tiny_sweep(tmp_path, ["training.lr=0.1,0.2,0.3"])
    more.check()
    assert [cell.name for cell in more.todo] == ["fedprox-lr0.3-seed0"]
    with pytest.raises(RunFolderError, match=r"another sweep.*participation was 0\.5"):
        tiny_sweep(
            tmp_path, ["training.lr=0.3,0.4"], federation={"rounds": 2, "participation": 1.0}
        ).check()
    with pytest.raises(RunFolderError, match="another sweep"):
        tiny_sweep(tmp_path, ["training.lr_decay=0.9,0.8"]).check()
    (tmp_path / "early" / "trials" / "fedprox-lr0.1-seed0").mkdir(parents=True)  # a kill's remains
    tiny_sweep(tmp_path / "early").check()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(RunFolderError, match="not empty"):
        tiny_sweep(tmp_path / "mine").check()


def weights(result: SweepResult) -> list[str]:
    runs = [RecordedRun.open(cell.path) for trial in result.trials for cell in trial.cells]
    return [run.summary.weights_sha256 for run in runs if run.summary]


def test_stopped_in_the_middle_it_goes_on_with_the_same_bits(
    swept: SweepResult, tmp_path: Path
) -> None:
    plan = tiny_sweep(tmp_path)
    crews: list[Crew] = []

    def stop_in_the_second(news: News) -> None:
        if news.name == plan.todo[1].name and news.round == 1:
            crews[0].stop()

    def guard(crew: Crew) -> AbstractContextManager[None]:
        crews.append(crew)
        return nullcontext()

    with pytest.raises(Interrupted, match="continues"):
        plan.carry_out(1, show=stop_in_the_second, guard=guard)
    assert [cell.finished for cell in tiny_sweep(tmp_path).planned[0].cells] == [True]
    assert not tiny_sweep(tmp_path).planned[1].cells[0].finished
    result = tiny_sweep(tmp_path).carry_out(parallel=1)
    weights = [
        [RecordedRun.open(cell.path).summary for trial in one.trials for cell in trial.cells]
        for one in (swept, result)
    ]
    assert [s.weights_sha256 for s in weights[0] if s] == [
        s.weights_sha256 for s in weights[1] if s
    ]


def test_a_point_that_diverges_is_a_result(tmp_path: Path) -> None:
    wild = {"epochs": 1, "batch_size": 16, "max_grad_norm": 0.0}
    four = {"rounds": 4, "participation": 0.5}  # as many as it takes to be sure
    plan = tiny_sweep(
        tmp_path, ["training.lr=1e30,0.1"], training=wild, federation=four, seeds=(0, 1)
    )
    result = plan.carry_out(parallel=1)
    assert [trial.state for trial in result.trials] == ["failed", "finished"]
    assert result.chosen.point == {"training.lr": 0.1}
    assert "no longer finite" in result.trials[0].why
    assert "failed" in result.report.read_text()
    with pytest.raises(TooFewClients, match="no trial finished"):
        tiny_sweep(tmp_path / "all", ["training.lr=1e30,1e31"], training=wild).carry_out(1)


def test_runs_that_end_early_are_tested_as_they_are(tmp_path: Path) -> None:
    three = {"rounds": 3, "participation": 0.5}
    result = tiny_sweep(tmp_path, ["federation.patience=1,2"], federation=three).carry_out(1)
    assert not (tmp_path / "chosen").exists()
    assert result.test.spread is not None
    assert 0 <= result.test.spread.mean <= 100
    assert "own models were scored" in result.report.read_text()
    assert experiment_from(result.config).data.holdout == 0.1


def test_two_seeds_of_a_point(tmp_path: Path) -> None:
    result = tiny_sweep(tmp_path, ["training.lr=0.01,0.2"], seeds=(0, 5)).carry_out(1)
    assert result.chosen.spread.count == 2
    assert result.test.spread is not None
    assert result.test.spread.count == 2


@pytest.mark.parametrize("seeds", [(0, 0), (1, 2, 1)])
def test_a_seed_that_is_named_twice(seeds: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="named once"):
        tiny_sweep(tmp_path, seeds=seeds)


@pytest.mark.slow
def test_killed_in_two_processes_the_same_command_goes_on(tmp_path: Path) -> None:
    words = (
        "training.lr=0.05,0.1", "data.clients=4", "federation.rounds=24", "output.checkpoint=4"
    )  # fmt: skip

    def command(out: Path) -> list[str]:
        return [sys.executable, "-m", "dcfl", "sweep", *words, "--parallel", "2", "--out", str(out)]

    out = tmp_path / "killed"
    with subprocess.Popen(command(out), stderr=subprocess.DEVNULL) as process:
        folders = [out / "trials" / f"dcfl-pw-lr{rate}-seed0" for rate in ("0.05", "0.1")]
        assert until(lambda: all(rows_in(folder) >= 6 for folder in folders), 120)
        process.kill()
    # The workers find out by themselves that nobody listens.
    assert until(lambda: all(is_free(folder) for folder in folders), 30)
    done = subprocess.run(command(out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    alone = dcfl.run(folders[0] / "config.toml", out=tmp_path / "alone")
    summary = RecordedRun.open(folders[0]).summary
    assert summary is not None
    assert summary.weights_sha256 == alone.summary.weights_sha256
