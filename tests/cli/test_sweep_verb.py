"""`dcfl sweep` as a person types it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from dcfl.config import experiment_from
from tests.command_line import Call

TINY = (
    *("data.clients=4", "data.train_images=200", "data.test_images=100", "model.width=4"),
    *("training.epochs=1", "training.batch_size=16", "federation.rounds=2"),
    *("method.name=fedprox", "engine.workers=1"),
)
GRID = ("training.lr=0.01,0.2", "method.mu=0.01,1")


@pytest.fixture
def sweep(unmeasured: Call) -> Call:
    return partial(unmeasured, "sweep")


def test_a_grid_a_choice_and_its_files(sweep: Call) -> None:
    code, out, err = sweep(*GRID, *TINY, "--parallel", "1", "--out", "sw")
    assert code == 0
    assert "data.holdout = 0.1, by default" in err
    assert "[4/5] fedprox-lr0.2-mu1-seed0  finished" in err
    assert "[5/5] chosen/fedprox-" in err
    assert out.index("kept back %") < out.index("Chosen: training.lr = ") < out.index("report  sw/")
    assert "share of the variance between trials: " in out
    assert experiment_from("sw/best.toml").data.holdout == 0.0
    code, out, err = sweep(*GRID, *TINY, "--parallel", "1", "--out", "sw", "--json")
    answer = json.loads(out)
    assert len(answer["trials"]) == 4
    assert answer["test"]["count"] == 1
    assert "finished  MAX" not in err  # nothing was trained again


def test_a_plan_trains_nothing(sweep: Call, tmp_path: Path) -> None:
    code, out, _ = sweep(*GRID, *TINY, "--plan", "--seeds", "0,1", "--parallel", "2")
    assert code == 0
    assert out.splitlines()[0].startswith("training.lr = 0.01, method.mu = 0.01  ")
    assert "4 trials with 2 seeds, then the chosen setting: about" in out
    assert not list(tmp_path.iterdir())
    code, out, _ = sweep(
        "training.lr=0.01:1:log", *TINY, "--random", "3", "--plan", "--json", "--parallel", "2"
    )
    answer = json.loads(out)
    assert (answer["trials"], answer["runs_to_do"], answer["processes"]) == (3, 4, 2)
    assert answer["seconds"] == pytest.approx(sum(answer["by_run"].values()) / 3 * 4 / 2, rel=0.2)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["training.lr=0.1"], "nothing to vary"),
        (["training.lr=0.1:1"], "is a range"),
        (["training.lr=1:0.1", "--random", "3"], "lower end"),
        (["training.lrr=0.1,0.2"], "did you mean lr?"),
        ([*GRID, "--budget", "soon"], "--budget soon"),
        ([*GRID, "--by", "accuracy"], "--by accuracy"),
        ([*GRID, "--random", "2", "--tune", "2"], "choose one"),
        ([*GRID, "--seeds", "x"], "whole numbers"),
        ([*GRID, "--reuse", "nowhere"], "nowhere"),
        ([*GRID, "a.toml", "b.toml"], "one config file"),
        ([*GRID, "method.name=fedavg"], "method.mu"),
    ],
)
def test_mistakes_are_one_line(sweep: Call, tmp_path: Path, words: list[str], why: str) -> None:
    code, out, err = sweep(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err
    assert not list(tmp_path.iterdir())
