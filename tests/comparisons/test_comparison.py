from dataclasses import replace
from pathlib import Path

import pytest

from dcfl.comparisons.groups import Outcome, group_runs, runs_by_partition
from dcfl.comparisons.pairs import Paired, Spread
from dcfl.comparisons.standing import Standing
from dcfl.methods.loading import load_methods
from dcfl.runs.folder import RecordedRun
from dcfl.runs.run import Run
from tests.engines.runs import Flat
from tests.reliability.victims import DATA, experiment, train
from tests.report.folders import write_run


def test_spread_by_hand() -> None:
    assert (f"{Spread(1.234, None, 1)}", f"{Spread(1, 0.5, 2):+}") == ("1.23", "+1.00 ± 0.50")
    assert Spread.of([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5), 2)
    assert Spread.of([4.0]) == Spread(4.0, None, 1)


def test_seeds_of_one_method_share_a_group_in_order_of_appearance(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{method}-{seed}", method=method, seed=seed)
        for method in ("moon", "fedavg")
        for seed in (0, 1)
    ]
    groups = group_runs(runs)
    assert [group.label for group in groups] == ["moon", "fedavg"]
    assert [group.runs for group in groups] == [tuple(runs[:2]), tuple(runs[2:])]


def test_a_sweep_is_not_mistaken_for_seeds(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(mu), method="fedprox", settings={"method.mu": mu})
        for mu in (0.01, 1.0)
    ]
    other = write_run(tmp_path / "other", method="moon", settings={"method.mu": 5.0})
    labels = [group.label for group in group_runs([*runs, other])]
    assert labels == ["fedprox mu=0.01", "fedprox mu=1", "moon"]


def test_a_method_that_was_edited_is_another_method(tmp_path: Path) -> None:
    """By the name alone its two versions would be seeds of one."""
    runs = []
    for seed, extra in enumerate(["", "", "    # edited\n"]):
        file = tmp_path / "mine.py"
        file.write_text(f"import dcfl\nclass Mine(dcfl.Method):\n    pass\n{extra}")
        (mine,) = load_methods(file).values()
        what = experiment(tmp_path / f"run{seed}", mine(), rounds=1)
        what = replace(what, federation=replace(what.federation, seed=seed))
        runs.append(RecordedRun.open(train(what).folder))
    first, second = group_runs(runs)
    assert (first.runs, second.runs) == (tuple(runs[:2]), tuple(runs[2:]))
    assert first.label.startswith("mine source=")
    assert first.label != second.label


def test_a_model_of_ones_own_is_known_by_its_source(tmp_path: Path) -> None:
    class Other(Flat):
        """The same tensors, and another class."""

    runs = []
    for name, model in (("a", Flat()), ("b", Other())):
        run = Run(experiment(tmp_path / name, rounds=1), DATA, model)
        assert [row["round"] for row in run.rounds()] == [1]
        runs.append(RecordedRun.open(run.folder))
    assert len(group_runs(runs)) == 2


def test_settings_outside_the_method_are_compared_across_methods(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "a", method="fedavg", settings={"data.alpha": 0.1}),
        write_run(tmp_path / "b", method="moon", settings={"data.alpha": 0.5}),
    ]
    labels = [group.label for group in group_runs(runs)]
    assert labels == ["fedavg data.alpha=0.1", "moon data.alpha=0.5"]


def test_differences_pair_the_seeds_that_both_have(tmp_path: Path) -> None:
    accuracies = {("a", 0): 50.0, ("a", 1): 60.0, ("b", 1): 61.0, ("b", 2): 90.0}
    runs = [
        write_run(tmp_path / f"{method}{seed}", [value], method=method, seed=seed)
        for (method, seed), value in accuracies.items()
    ]
    _, second = groups = group_runs(runs)
    gain = Standing(groups).gain(second)
    assert gain is not None
    assert gain.paired == Paired((1.0,))


def test_without_a_shared_seed_there_is_no_difference(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), method=f"m{seed}", seed=seed) for seed in (0, 1)]
    _, second = groups = group_runs(runs)
    assert Standing(groups).gain(second) is None


def test_an_unfinished_run_stays_out_of_the_mean(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "whole", [40.0, 40.0]),
        write_run(tmp_path / "half", [10.0, 10.0], seed=1, finished=False),
    ]
    (group,) = group_runs(runs)
    assert group.spread("ema_accuracy") == Spread(40.0, None, 1)


def test_the_last_round_that_was_evaluated_counts(tmp_path: Path) -> None:
    not_evaluated = {"accuracy": None, "max_accuracy": None, "ema_accuracy": None}
    run = write_run(tmp_path / "run", [30.0, 40.0, 50.0], row_changes={3: not_evaluated})
    outcome = Outcome.of(run)
    assert (outcome.rounds, outcome.final_accuracy, outcome.max_accuracy) == (3, 40.0, 40.0)


def test_partitions_are_told_apart_by_their_hash(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / sha, partition_sha256=sha) for sha in ("x", "y")]
    (tmp_path / "y" / "partition.npz").unlink()
    assert runs_by_partition(runs) == {"x": runs[:1]}


def test_curves_and_plain_values_are_means_over_seeds(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{method}{seed}", [value, value + 10], method=method, seed=seed)
        for method, seed, value in (("a", 0, 10.0), ("b", 0, 20.0), ("a", 1, 30.0), ("b", 1, 50.0))
    ]
    first, _ = groups = group_runs(runs)
    assert first.curve == [20.0, 30.0]
    reference, shown = Standing(groups).to_json()["methods"]
    assert shown["method"] == "b"
    assert shown["max_accuracy"]["mean"] == 45.0
    assert shown["gain"]["mean"] == pytest.approx(15.0)
    assert reference["gain"] is None


def test_the_clients_own_mixes_are_in_the_plain_values(tmp_path: Path) -> None:
    (group,) = group_runs([write_run(tmp_path / "run", [30.0, 60.0])])
    shown = group.to_json()
    assert shown["own_accuracy"]["mean"] == 59.0
