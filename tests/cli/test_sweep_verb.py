"""`dcfl sweep` as a person types it."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from dcfl.config import experiment_from
from tests.command_line import Call
from tests.comparisons.small_sweeps import tiny_sweep
from tests.paper.hand_made import pretend

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
    assert experiment_from("sw/best.toml").data.holdout == 0.0
    code, out, err = sweep(*GRID, *TINY, "--parallel", "1", "--out", "sw", "--json")
    answer = json.loads(out)
    assert len(answer["trials"]) == 4
    assert answer["test"]["count"] == 1
    assert "finished  MAX" not in err  # nothing was trained again


def test_a_plan_trains_nothing(sweep: Call, tmp_path: Path) -> None:
    code, out, _ = sweep(*GRID, *TINY, "--plan", "--seeds", "0,1", "--parallel", "2")
    assert code == 0
    title, columns, *rows, total = out.splitlines()
    assert title == "time left of each trial, 2 seeds together"
    assert columns.split("  ") == ["training.lr", "method.mu = 0.01", "method.mu = 1"]
    assert [row.split()[0] for row in rows] == ["0.01", "0.2"]
    assert total.startswith("4 trials with 2 seeds, then the chosen setting: about")
    assert not list(tmp_path.iterdir())
    code, out, _ = sweep("training.lr=0.01,0.1,1", *TINY, "--plan", "--json", "--parallel", "2")
    answer = json.loads(out)
    assert (answer["trials"], answer["runs_to_do"], answer["processes"]) == (3, 4, 2)
    assert answer["seconds"] == pytest.approx(sum(answer["by_run"].values()) / 2)


def test_a_plan_needs_no_data(sweep: Call, tmp_path: Path) -> None:
    words = ("data.dataset=cifar10", "data.path=nowhere", "federation.rounds=7", "--plan")
    code, out, err = sweep(*GRID[:1], *words)
    assert code == 0
    assert "2 trials with 1 seed, then the chosen setting; how long they take is not known" in err
    title, columns, *rows = out.splitlines()
    assert title == "rounds left of each trial"
    assert columns.split() == ["training.lr", "left"]
    assert [row.split() for row in rows] == [["0.01", "7"], ["0.2", "7"]]
    answer = json.loads(sweep(*GRID[:1], *words, "--json")[1])
    assert answer["seconds"] is None
    assert sum(answer["rounds_left"].values()) == 21
    assert not list(tmp_path.iterdir())


def test_a_plan_of_what_is_done(sweep: Call, tmp_path: Path) -> None:
    plan = tiny_sweep(tmp_path / "sw", ["training.lr=0.01,0.2"])
    for trial in plan.planned:
        pretend(trial.cells[0], [20.0, 10.0 + trial.number])
    words = ("training.lr=0.01,0.2", *TINY, "federation.participation=0.5", "--plan")
    code, out, err = sweep(*words, "--out", "sw")
    assert code == 0, err
    assert [row.split()[-1] for row in out.splitlines()[2:4]] == ["done", "done"]
    assert "then the chosen setting: about" in out
    (chosen,) = tiny_sweep(tmp_path / "sw", ["training.lr=0.01,0.2"]).chosen_todo
    pretend(chosen, [20.0, 20.0])
    code, out, err = sweep(*words, "--out", "sw")
    assert code == 0, err
    assert out.splitlines()[-1] == "2 trials with 1 seed: nothing left to do"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["training.lr=0.1"], "nothing to vary"),
        ([*GRID[:1], "method.mu=0.1:1"], "method.mu must be a number"),
        (["training.lrr=0.1,0.2"], "did you mean lr?"),
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


WORDS = ("compare", "--methods", "fedavg,moon", "--seeds", "0,3", "--plan")


def test_a_grid_of_methods_and_seeds(unmeasured: Call, tmp_path: Path) -> None:
    code, out, _ = unmeasured(*WORDS, "--parallel", "1")
    assert code == 0
    title, columns, *rows, total = out.splitlines()
    assert title == "time left of each run"
    assert re.split(r"  +", columns.strip()) == ["method", "seed 0", "seed 3"]
    assert [row.split()[0] for row in rows] == ["fedavg", "moon"]
    assert total.startswith("4 runs: about ")
    assert not list(tmp_path.iterdir())
    answer = json.loads(unmeasured(*WORDS, "--parallel", "1", "--json")[1])
    assert answer["seconds"] == sum(answer["by_run"].values())
    assert {*answer["by_run"]} == {f"{name}-seed{s}" for s in (0, 3) for name in ("fedavg", "moon")}


def test_it_needs_no_data(unmeasured: Call, tmp_path: Path) -> None:
    code, out, err = unmeasured(*WORDS, "data.dataset=cifar10", "data.path=nowhere")
    assert code == 0
    assert "4 runs; how long they take is not known: cifar10: no" in err
    assert out.splitlines()[2].split() == ["fedavg", "80", "80"]
    assert not list(tmp_path.iterdir())


OWN_METHOD = """from dataclasses import dataclass
import dcfl

@dataclass(frozen=True)
class Theirs(dcfl.Method):
    weight: float = 0.3
"""


def test_tuned_methods_with_an_own_one(unmeasured: Call, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN_METHOD)
    settings = [setting for setting in TINY if not setting.startswith("method.")]
    methods = ("--methods", "fedprox,theirs", "--method-file", str(own), "--no-tune-lr")
    tune = partial(unmeasured, "compare", *settings, *methods, "--out", "t", "--parallel", "1")
    code, out, _ = tune("--tune", "3", "--plan", "--json")
    answer = json.loads(out)
    assert (answer["trials"], answer["runs"], answer["runs_to_do"]) == (12, 2, 14)
    code, out, err = tune("--tune", "3")
    assert code == 0
    assert "[14/14] " in err
    assert out.index("at the edge") < out.index("weight = ") < out.index("vs fedprox")
    code, out, _ = tune("--tune", "3", "--plan")
    assert "12 trials, then 2 runs: nothing left to do" in out
    answer = json.loads(tune("--tune", "3", "--json")[1])
    assert [len(one["trials"]) for one in answer["tuned"]] == [3, 3]
    assert answer["tuned"][1]["varied"] == ["method.weight"]
    code, _, err = tune("--tune", "2")
    assert (code, err) == (2, "dcfl: --tune 2: every method has 3 to 12 trials\n")
