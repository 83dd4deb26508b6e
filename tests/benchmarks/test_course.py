"""Looking at a run in the course of its training does not change it."""

from dataclasses import replace
from pathlib import Path

import pytest

import dcfl
from benchmarks.course import follow
from dcfl.analysis.drift import mean_turn
from dcfl.analysis.similarity import embed, measure_similarity
from dcfl.runs.model_file import load_model
from tests.analysis.trained import QUICK, train


@pytest.mark.parametrize("method", ["moon", "dcfl-pw"])  # with memories, with prototypes
def test_moments_are_those_of_the_run_itself(tmp_path: Path, method: str) -> None:
    settings = {"method.name": method, "model.head": "side32", "federation.rounds": 3}
    runs = [
        train(tmp_path / str(rounds), **{**settings, "federation.rounds": rounds})
        for rounds in (2, 3)
    ]
    experiment = dcfl.load_experiment(**{**QUICK, **settings})  # type: ignore[arg-type]
    second, third = follow(experiment, rounds=(2, 3), clients=3)
    assert (second.round, third.round) == (2, 3)
    dataset = dcfl.data.load_dataset(experiment.data)
    features = [embed(load_model(run.folder), dataset.test, dataset.preparation)[0] for run in runs]
    assert third.turn == pytest.approx(mean_turn(*features), abs=1e-9)
    for moment, run, own in zip((second, third), runs, features, strict=True):
        assert moment.accuracy == pytest.approx(run.rounds[-1].accuracy)
        assert moment.train_loss == pytest.approx(run.rounds[-1].train_loss)
        expected = measure_similarity(own, dataset.test.labels).intra.mean
        assert moment.spaces["features"]["intra"] == pytest.approx(expected)
    assert set(third.spaces) == {"features", "projection"}
    assert replace(third, round=2) != second
