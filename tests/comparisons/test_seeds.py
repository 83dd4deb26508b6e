"""A seed is a new split, schedule, start and order, unless the split has a seed of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dcfl
import dcfl.cli.main
from dcfl.comparisons.comparison import plan_comparison
from dcfl.config import experiment_from, parse_settings
from dcfl.data import DataSettings, load_dataset
from dcfl.errors import ConfigError
from dcfl.experiment import Experiment
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from tests.command_line import Call

FAST = ("federation.rounds=1", "training.epochs=1", "engine.workers=1", "data.clients=4")


def split_of(seed: int, **settings: Any) -> str:
    """The SHA-256 of the split that this seed draws, by hand."""
    data = DataSettings(clients=4, seed=seed, **settings)
    return data.split(load_dataset(data)).sha256


def run_of(folder: Path, *words: str) -> Run:
    named = (*FAST, *words, f"output.dir={folder}")
    return Run(experiment_from(None, parse_settings(named)))


@pytest.mark.parametrize(
    ("words", "seed"),
    [
        ((), 0),
        (("federation.seed=3",), 3),
        (("federation.seed=3", "data.seed=0"), 0),
        (("data.seed=2",), 2),
        (("federation.seed=3", "data.seed=federation"), 3),
    ],
)
def test_the_split_follows_the_federations_seed_unless_it_has_its_own(
    words: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", *words)
    assert run.prepared.data.partition.sha256 == split_of(seed)
    recorded = RecordedRun.open(run.folder)
    assert recorded.config["data"]["seed"] == seed  # written out
    assert recorded.partition_sha256 == split_of(seed)


def test_from_python_too(tmp_path: Path) -> None:
    tables = {"data": {"clients": 4}, "federation": {"rounds": 1, "seed": 5}}
    result = dcfl.run(out=tmp_path / "run", training={"epochs": 1}, **tables)
    assert result.summary["partition_sha256"] == split_of(5)
    made = Experiment(federation=dcfl.experiment.FederationSettings(seed=5))
    assert made.seeded_data.seed == 5


@pytest.mark.parametrize(
    ("word", "splits"), [("data.holdout=0.2", {0: 0, 4: 4}), ("data.seed=7", {0: 7, 4: 7})]
)
def test_compare_gives_every_seed_a_split_that_its_methods_share(
    word: str, splits: dict[int, int]
) -> None:
    """Which also decides what is kept back; unless a split was asked for."""
    experiment = experiment_from(None, parse_settings([*FAST, word]))
    planned = [
        cell.experiment
        for cell in plan_comparison(experiment, ["fedavg", "fedprox"], [*splits]).cells
    ]
    assert [one.federation.seed for one in planned] == [0, 0, 4, 4]
    assert all(one.seeded_data.seed == splits[one.federation.seed] for one in planned)


def test_partition_shows_the_split_that_a_run_would_have(cli: Call) -> None:
    _, out, _ = cli("partition", "data.clients=4", "federation.seed=3", "--json")
    assert json.loads(out)["sha256"] == split_of(3)


def test_a_data_set_by_itself_has_the_seed_0() -> None:
    dataset = load_dataset(DataSettings())
    assert DataSettings().split(dataset).sha256 == DataSettings(seed=0).split(dataset).sha256


@pytest.mark.parametrize("word", ["data.seed=-1", "data.seed=mine", "data.seed=1.5"])
def test_other_seeds_are_refused_in_one_line(word: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.seed must") as refused:
        experiment_from(None, parse_settings([word]))
    assert "\n" not in str(refused.value)
