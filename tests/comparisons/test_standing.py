"""Recorded runs compared: by seed, within their task, against a target."""

from pathlib import Path
from typing import Any

import pytest

from dcfl.comparisons.groups import group_runs, scored_on
from dcfl.comparisons.standing import (
    CostToReach,
    Reached,
    Standing,
    comparable_means,
    cost_to_reach,
)
from dcfl.comparisons.verdict import headline, verdict
from dcfl.errors import ConfigError
from dcfl.runs.folder import RecordedRun
from tests.report.folders import write_run


def seconds(*by_round: float) -> list[dict[str, Any]]:
    """Two clients in each round, which train so long together."""
    return [
        {"round": 1 + index // 2, "client": index, "outcome": "ok", "reason": "",
         "metrics": {"seconds": by_round[index // 2] / 2}}
        for index in range(2 * len(by_round))
    ]  # fmt: skip


def test_what_it_took_to_reach_an_accuracy(tmp_path: Path) -> None:
    """EMA is 20, 24, 26.6; three megabytes a round."""
    run = write_run(tmp_path / "run", [20.0, 60.0, 50.0], clients=seconds(1.0, 2.0, 4.0))
    assert cost_to_reach(run, 20.0) == CostToReach(1, 3e6, 1.0)
    assert cost_to_reach(run, 25.0) == CostToReach(3, 9e6, 7.0)  # although round 2 had 60 %
    assert cost_to_reach(run, 26.7) is None


def test_rounds_that_were_not_scored_do_not_reach_anything(tmp_path: Path) -> None:
    changes = {2: {"accuracy": None}}
    run = write_run(tmp_path / "run", [20.0, 60.0, 50.0], row_changes=changes)
    assert cost_to_reach(run, 22.0) == CostToReach(3, 9e6, 0.0)


def test_costs_are_means_over_the_seeds_that_reach_it() -> None:
    reached = Reached([CostToReach(2, 10.0, 1.0), None, CostToReach(5, 30.0, 2.0)])
    assert (reached.count, reached.mean) == (2, CostToReach(3.5, 20.0, 1.5))
    assert Reached([None]).mean is None


def two_methods(folder: Path) -> list[RecordedRun]:
    """B is one point above in seed 0, three in seed 1."""
    return [
        write_run(folder / f"{method}{seed}", [value, value + 10], method=method, seed=seed)
        for method, seed, value in (("a", 0, 50.0), ("b", 0, 51.0), ("a", 1, 40.0), ("b", 1, 43.0))
    ]


def test_the_default_target_is_what_the_first_method_reaches_in_the_same_seed(
    tmp_path: Path,
) -> None:
    first, second = groups = group_runs(two_methods(tmp_path))
    standing = Standing(groups)
    assert standing.target_of("") == pytest.approx(46.0)  # EMA 51 and 41
    assert [cost and cost.rounds for cost in standing.reached(first).costs] == [2, 2]
    assert [cost and cost.rounds for cost in standing.reached(second).costs] == [1, 1]
    chosen = Standing(groups, target=51.5)
    assert [cost and cost.rounds for cost in chosen.reached(second).costs] == [2, None]
    assert chosen.reached(first).count == 0


def test_by_what_the_global_model_is_worth_to_clients(tmp_path: Path) -> None:
    runs = two_methods(tmp_path)
    changed = {1: {"client_accuracy": 90.0}}
    runs.append(write_run(tmp_path / "c", [10.0], method="c", row_changes=changed))
    _, _, third = groups = group_runs(runs)
    gain = Standing(groups, by="clients").gain(third)
    assert gain is not None
    assert gain.paired.differences == pytest.approx((31.0,))  # 60 less one point
    assert Standing(groups, by="clients", target=80.0).reached(third).count == 1
    with pytest.raises(ConfigError, match="--by client: global or clients"):
        _ = Standing(groups, by="client").quantity


PERSONAL = {
    "personal_accuracy": 85.0,
    "worst_decile_personal_accuracy": 70.0,
    "personal_models": 4,
}


def test_personal_models_are_judged_by_what_clients_have_of_them(tmp_path: Path) -> None:
    """Not by the global model, which nobody uses."""
    runs = [
        write_run(tmp_path / "fedavg", [50.0, 72.0]),
        write_run(tmp_path / "fedbn", [20.0, 30.0], method="fedbn", scores=PERSONAL),
    ]
    common, personal = groups = group_runs(runs)
    standing = Standing(groups)
    assert standing.to_json()["compared_by"] == "own_accuracy"
    assert standing.best("") is personal
    gain = standing.gain(personal)
    assert gain is not None
    assert gain.paired.spread.mean == pytest.approx(14.0)  # 85 to 71, of the clients
    assert personal.spread("worst_decile_accuracy").mean == 70.0
    assert [standing.reached(one).count for one in groups] == [1, 1]
    assert [one.count for one in map(Standing(groups, target=80.0).reached, groups)] == [0, 1]
    assert "fedbn has the highest mean accuracy of clients, each on its own, 85.00 %" in headline(
        standing
    )
    assert "Clients’ own accuracy is taken after the last round" in verdict(standing)[-1]
    assert Standing(groups, by="global").best("") is common


def test_personal_runs_that_are_not_finished_have_no_number_yet(tmp_path: Path) -> None:
    (group,) = group_runs([write_run(tmp_path / "run", method="ditto", finished=False)])
    assert group.has_personal
    assert group.spread("own_accuracy").mean != group.spread("own_accuracy").mean
    assert headline(Standing([group])) == "No round has ended yet."


def several_tasks(folder: Path) -> list[RecordedRun]:
    return [
        write_run(
            folder / f"{method}-{alpha}-{seed}",
            [10 * alpha + gain + seed],
            method=method,
            seed=seed,
            settings={"data.alpha": alpha, **extra},
        )
        for alpha in (1.0, 2.0, 3.0)
        for method, gain, extra in (
            ("b", 2.0, {"method.mu": alpha}),  # tuned for each split
            ("a", 0.0, {}),
            ("c", 1.0, {}),
        )
        for seed in (0, 1)
    ]


def test_methods_are_compared_within_a_task_only(tmp_path: Path) -> None:
    groups = group_runs(several_tasks(tmp_path))
    standing = Standing(groups)
    assert list(standing.tasks) == [f"data.alpha={alpha}" for alpha in (1, 2, 3)]
    assert [group.method for group in standing.tasks["data.alpha=2"]] == ["b", "a", "c"]
    assert groups[0].label == "b data.alpha=1"
    gains = [standing.gain(group) for group in groups if group.method == "c"]
    assert [gain and gain.paired.differences for gain in gains] == [(-1.0, -1.0)] * 3
    ranking = standing.ranking
    assert ranking is not None
    assert ranking.mean_ranks == {"b": 1.0, "c": 2.0, "a": 3.0}
    assert ranking.tasks == 3
    shown = standing.to_json()
    assert len(shown["pairs"]) == 6
    assert len(Standing(groups, all_pairs=True).to_json()["pairs"]) == 9
    assert shown["ranking"]["mean_ranks"] == ranking.mean_ranks


def test_augmentation_is_a_choice_and_not_a_task(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(crop), [50.0], settings={"data.crop": crop}) for crop in (0, 4)
    ]
    assert [group.method for group in group_runs(runs)] == [
        "fedavg data.crop=0",
        "fedavg data.crop=4",
    ]
    assert list(Standing(group_runs(runs)).tasks) == [""]


def test_means_are_over_the_seeds_that_all_have() -> None:
    scores = {"a": {0: 1.0, 1: 3.0}, "b": {1: 5.0, 2: 100.0}}
    assert comparable_means(scores) == {"a": 3.0, "b": 5.0}
    assert comparable_means({"a": {0: 1.0}, "b": {1: 5.0}}) == {"a": 1.0, "b": 5.0}


def test_kept_back_images_are_not_called_test_images(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(share), settings={"data.holdout": share}) for share in (0.0, 0.2)
    ]
    assert [scored_on([run]) for run in runs] == ["test images", "kept-back images"]
    assert scored_on(runs) == "test images or kept-back images"
