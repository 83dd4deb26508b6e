"""Evaluation only as often as wanted, on as many images as wanted."""

from pathlib import Path

import pytest

import dcfl
from dcfl.data import DataSettings, load_dataset
from dcfl.errors import ConfigError, Interrupted
from dcfl.evaluation import ema, score_model
from dcfl.experiment import FederationSettings
from dcfl.report import write_report
from dcfl.runs.run import Run
from tests.engines.runs import untimed

SETTINGS = {
    "data.clients": 6,
    "federation.rounds": 7,
    "federation.participation": 0.5,
    "training.epochs": 1,
    "engine.workers": 1,
    "output.report": False,
}
EVALUATED = [3, 6, 7]  # of seven rounds, every third and the last


@pytest.mark.parametrize(("method", "workers"), [("fedavg", 1), ("moon", 2), ("dcfl-pw", 1)])
def test_the_weights_are_those_of_a_run_that_is_scored_after_every_round(
    method: str, workers: int, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "engine.workers": workers, "method.name": method}
    always = dcfl.run(out=tmp_path / "always", **settings)
    seldom = dcfl.run(out=tmp_path / "seldom", **settings, **{"federation.evaluate_every": 3})
    assert seldom.summary.weights_sha256 == always.summary.weights_sha256
    assert [row.round for row in seldom.rounds if row.accuracy is not None] == EVALUATED
    for row, full in zip(seldom.rounds, always.rounds, strict=True):
        assert row.train_loss == full.train_loss
        if row.round in EVALUATED:
            assert (row.accuracy, row.loss) == (full.accuracy, full.loss)
        else:
            assert row.loss is row.client_accuracy is None
    assert [row.max_accuracy is None for row in seldom.rounds] == [True, True] + [False] * 5
    assert seldom.rounds[3].ema_accuracy == seldom.rounds[2].ema_accuracy
    scored = [row.accuracy for row in seldom.rounds if row.accuracy is not None]
    assert seldom.summary.max_accuracy == max(scored)
    assert seldom.summary.ema_accuracy == ema(scored, rounds=EVALUATED)
    own = [row.client_accuracy for row in seldom.rounds if row.client_accuracy is not None]
    assert seldom.summary.ema_client_accuracy == ema(own, rounds=EVALUATED)
    every = [row.accuracy for row in always.rounds if row.accuracy is not None]
    assert always.summary.ema_accuracy == ema(every)
    assert always.summary.max_accuracy == max(every)
    assert seldom.summary.final_accuracy == always.summary.final_accuracy
    assert (seldom.summary.evaluate_every, always.summary.evaluate_every) == (3, 1)
    assert "evaluate_every" not in always.summary.to_json()


def stop_after(run: Run, last: int) -> None:
    for row in run.rounds():
        if row.round == last:
            run.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "last"), [(1, 2), (2, 3), (2, 4)])
def test_a_resumed_run_is_that_of_a_run_that_was_never_stopped(
    workers: int, last: int, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "engine.workers": workers, "federation.evaluate_every": 3}
    whole = dcfl.run(method="moon", out=tmp_path / "whole", **settings)
    folder = tmp_path / "stopped"
    experiment = dcfl.load_experiment(method="moon", output={"dir": str(folder)}, **settings)
    with pytest.raises(Interrupted):
        stop_after(Run(experiment), last)
    resumed = dcfl.resume(folder)
    assert resumed.summary.weights_sha256 == whole.summary.weights_sha256
    assert [untimed(row) for row in resumed.rounds] == [untimed(row) for row in whole.rounds]


def test_the_page_says_so_and_the_score_is_that_of_the_subset(tmp_path: Path) -> None:
    settings = {**SETTINGS, "federation.evaluate_every": 3, "data.test_images": 100}
    result = dcfl.run(out=tmp_path / "run", **settings)
    page = write_report(result.folder).read_text()
    assert "every 3 rounds and after the last on 100 test images" in page
    subset = load_dataset(DataSettings(test_images=100))
    assert score_model(result.model, subset).accuracy == result.summary.final_accuracy


def test_a_subset_of_more_than_all_is_all() -> None:
    whole = load_dataset(DataSettings())
    assert len(load_dataset(DataSettings(test_images=10**6)).test) == len(whole.test)
    assert len(load_dataset(DataSettings(test_images=100)).train) == len(whole.train)


def test_bad_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluate_every must be at least 1, not 0"):
        FederationSettings(evaluate_every=0)
    with pytest.raises(ConfigError, match=r"test_images must be 0 \(all\) or more, not -1"):
        DataSettings(test_images=-1)
