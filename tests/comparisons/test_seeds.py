"""A seed is a new split, schedule, start and order, unless the split has a seed of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dcfl
import dcfl.cli.main
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
    assert made.seeded.data.seed == 5
    assert made.seeded.seeded == made.seeded


def held_out(run: RecordedRun) -> str:
    return load_dataset(run.experiment.data).fingerprint


COMPARE = (
    "compare",
    *FAST,
    "--methods",
    "fedavg,fedprox",
    "--seeds",
    "0,4",
    "--parallel",
    "1",
    "--out",
    "cmp",
)


def compared() -> dict[str, RecordedRun]:
    return {
        name: RecordedRun.open(Path("cmp") / name)
        for name in ("fedavg-seed0", "fedprox-seed0", "fedavg-seed4", "fedprox-seed4")
    }


def test_compare_gives_every_seed_a_split_that_its_methods_share(cli: Call) -> None:
    assert cli(*COMPARE, "data.holdout=0.2")[0] == 0
    runs = compared()
    for name, run in runs.items():
        assert run.partition_sha256 == split_of(int(name[-1]), holdout=0.2)
    for seed in (0, 4):
        assert held_out(runs[f"fedavg-seed{seed}"]) == held_out(runs[f"fedprox-seed{seed}"])
    assert len({held_out(run) for run in runs.values()}) == 2


def test_compare_keeps_a_split_that_was_asked_for(cli: Call) -> None:
    assert cli(*COMPARE, "data.seed=7")[0] == 0
    runs = compared()
    assert {run.partition_sha256 for run in runs.values()} == {split_of(7)}
    # The rest of the seed still counts.
    weights = {run.summary["weights_sha256"] for name, run in runs.items() if "fedavg" in name}
    assert len(weights) == 2


def test_partition_shows_the_split_that_a_run_would_have(
    cli: Call,
) -> None:
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
