"""`compare --tune`: equal budgets on kept-back images, then a comparison of what won."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.comparisons.comparison import Comparison, ComparisonPlan, plan_comparison
from dcfl.comparisons.searches import best_of
from dcfl.comparisons.tuning import axes_of, knobs, remarks_on
from dcfl.config import experiment_from
from dcfl.errors import ConfigError, RunFolderError, TooFewClients
from dcfl.experiment import Experiment
from dcfl.methods import METHODS
from dcfl.runs.folder import RecordedRun
from dcfl.runs.rows import RoundRow
from dcfl.runs.run import Run
from tests.comparisons.small_sweeps import TINY
from tests.paper.hand_made import pretend

TRIALS = 4


def tiny(out: Path, **changes: Any) -> Experiment:
    return experiment_from(None, {**TINY, "output": {"dir": str(out)}, **changes})


def planned(out: Path, *methods: str | dcfl.Method, **how: Any) -> ComparisonPlan:
    return plan_comparison(tiny(out), methods, (0, 1), tune=TRIALS, **how)


@dataclass(frozen=True)
class Mine(dcfl.Method):
    """Of this file, without a word about what is to be searched."""

    strength: float = 0.0
    steps: int = 3


def test_each_method_has_numbers_to_vary() -> None:
    found = {name: knobs(method()) for name, method in METHODS.items()}
    none = {"fedavg", "fedbabu", "fedbn", "fedper", "lg-fedavg", "fedrod"}
    assert {name for name, names in found.items() if not names} == none
    assert found["fedsol"] == ["rho"]
    assert found["dcfl-pw"] == ["mu"]
    assert found["feddc"] == ["alpha"]
    assert found["ifca"] == ["clusters"]  # a whole number
    assert found["feddisco"] == ["a", "b"]
    assert knobs(Mine()) == ["strength"]


def test_what_is_varied_begins_where_it_stands_and_stays_if_it_was_named(tmp_path: Path) -> None:
    def varied(method: str | dcfl.Method, lr: bool = True) -> dict[str, Any]:
        plan = planned(tmp_path, method, tune_lr=lr)
        (search,) = plan.searches
        return {axis.key: (axis.start, len(axis.first)) for axis in search.axes}

    lr = tiny(tmp_path).training.lr
    assert varied("fedprox") == {"method.mu": (0.01, 3), "training.lr": (lr, 1)}
    assert varied("fedavg") == {"training.lr": (lr, 3)}
    assert varied("fedprox(mu=0.5)") == {"training.lr": (lr, 3)}
    assert varied("fedprox(training.lr=0.5)") == {"method.mu": (0.01, 3)}
    assert varied(Mine(), lr=False) == {"method.strength": (1.0, 3)}
    assert varied("fedavg", lr=False) == {}
    assert list(axes_of(tiny(tmp_path), ["method.mu", "training.lr"], True)) == []


def pretended(plan: ComparisonPlan, score: Callable[[Experiment], float]) -> None:
    """All trials of a plan, as if they had been trained."""
    for search in plan.searches:
        while left := [cell for cell in search.so_far().cells if not cell.ended]:
            for cell in left:
                pretend(cell, [score(cell.experiment)])


def more_is_better(experiment: Experiment) -> float:
    method: Any = experiment.method
    return 50 + 10 * experiment.training.lr + getattr(method, "mu", 0.0)


def test_budgets_seeds_and_images_are_the_same_for_all(tmp_path: Path) -> None:
    plan = planned(tmp_path, "fedavg", "fedprox", "moon(mu=2)", "fedcm")
    pretended(plan, more_is_better)
    tuned = [search.so_far() for search in plan.searches]
    assert [len(one.tried) for one in tuned] == [TRIALS] * 4
    for one in tuned:
        names = {cell.path for cell in one.cells}
        assert len(names) == 2 * TRIALS
        for trial in one.tried.values():
            assert [cell.experiment.federation.seed for cell in trial.cells] == [100, 101]
            assert {cell.experiment.data.holdout for cell in trial.cells} == {0.1}
    assert {cell.experiment.data.holdout for cell in plan.expected[1]} == {0.0}


def test_seeds_of_trials_are_none_of_the_comparison(tmp_path: Path) -> None:
    plan = plan_comparison(tiny(tmp_path), ["fedavg"], (100, 0), tune=3)
    assert plan.searches[0].makes.seeds == [101, 102]


def test_a_grid_grows_and_the_best_is_compared_whatever_it_is(tmp_path: Path) -> None:
    plan = planned(tmp_path, "fedprox(training.lr=0.05)", "fedcm(training.lr=0.05)")
    pretended(plan, more_is_better)
    prox, cm = (search.so_far() for search in plan.searches)
    mus = [trial.point["method.mu"] for trial in prox.tried.values()]
    assert mus == [0.001, 0.01, 0.1, 1.0]
    assert prox.chosen == {"method.mu": 1.0}
    assert prox.at_edge == ["method.mu"]
    assert [trial.point["method.alpha"] for trial in cm.tried.values()][:3] == [0.01, 0.1, 1.0]
    names = [cell.name for cell in plan.expected[1]]
    assert names[0] == "fedprox-lr0.05-mu1-seed0"
    assert plan.expected[1][0].experiment.method == METHODS["fedprox"](mu=1.0)  # type: ignore[call-arg]


def test_whole_numbers_are_searched_in_whole_numbers(tmp_path: Path) -> None:
    plan = planned(tmp_path, "ifca(training.lr=0.05)", by="global")
    pretended(plan, lambda experiment: 50.0 - abs(getattr(experiment.method, "clusters", 0) - 4))
    (tuned,) = (search.so_far() for search in plan.searches)
    assert [trial.point["method.clusters"] for trial in tuned.tried.values()] == [1, 2, 4, 8]
    assert tuned.chosen == {"method.clusters": 4}
    assert tuned.at_edge == tuned.remarks == []


def test_of_tied_trials_the_one_nearest_to_the_methods_own_value_is_compared(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, "fedprox(training.lr=0.05)")
    pretended(plan, lambda experiment: 50.0)
    (tuned,) = (search.so_far() for search in plan.searches)
    assert tuned.chosen == {"method.mu": 0.01}
    (remark,) = tuned.remarks
    assert remark.startswith("fedprox(training.lr=0.05): three other trials scored as high")


def test_a_winner_at_the_edge_is_told_how_to_go_on(tmp_path: Path) -> None:
    plan = planned(tmp_path, "fedprox(training.lr=0.05)")
    pretended(plan, more_is_better)
    (remark,) = plan.searches[0].so_far().remarks
    assert "at the edge of what was tried: mu. A value beyond it may be better" in remark
    assert "--tune 7 goes on from here" in remark


def test_who_never_came_near_the_first_methods_learning_rate_is_named(tmp_path: Path) -> None:
    """FedAvg has nothing else to search; the others begin with their own terms."""

    def remarks(out: Path, better: Callable[[Experiment], float]) -> list[str]:
        plan = planned(out, "fedavg", "fedprox", "fedcm(training.lr=0.05)")
        pretended(plan, better)
        return remarks_on([search.so_far() for search in plan.searches])

    *_, remark = remarks(tmp_path / "fast", lambda one: 50 + 100 * one.training.lr)
    assert "no trial of fedprox went as far: they may have lost by it. Begin with" in remark
    level = remarks(tmp_path / "level", lambda one: 50.0)
    assert not any("went as far" in one for one in level)


def test_personal_methods_are_tuned_by_their_own_models(tmp_path: Path) -> None:
    """The global model of Ditto is FedAvg's, whatever mu is."""
    plan = planned(tmp_path, "ditto(training.lr=0.05)", "fedprox(training.lr=0.05)")
    for search in plan.searches:
        while left := [cell for cell in search.so_far().cells if not cell.ended]:
            for cell in left:
                own = 50 + getattr(cell.experiment.method, "mu", 0.0)
                pretend(cell, [60.0], scores={"personal_accuracy": own, "personal_models": 4})
    ditto, prox = (search.so_far() for search in plan.searches)
    values = [trial.point["method.mu"] for trial in ditto.tried.values()]
    assert ditto.chosen == {"method.mu": max(values)}
    assert {trial.yardstick.name for trial in prox.tried.values()} == {"clients’ own accuracy"}
    asked = planned(tmp_path / "other", "ditto", by="global")
    assert asked.searches[0].makes.yardstick.name == "EMA"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("tuned") / "cmp"
    methods = ["fedavg", "fedprox", Mine()]
    return dcfl.compare(tiny(out), methods=methods, seeds=(0,), tune=3, parallel=1)


def test_winners_are_what_is_compared(compared: Comparison) -> None:
    assert [one.label for one in compared.tuned] == ["fedavg", "fedprox", "mine"]
    for one, group in zip(compared.tuned, compared.groups, strict=True):
        assert len(one.tried) == 3
        best = one.tried[best_of({point: trial.score for point, trial in one.tried.items()})]
        (run,) = group.runs
        used = {key: run.config[key.split(".")[0]][key.split(".")[1]] for key in one.keys}
        assert one.chosen == used == {key: best.point[key] for key in one.keys}
        assert run.config["data"]["holdout"] == 0.0
    assert "How settings were chosen" in compared.report.read_text()


def test_test_images_are_not_among_those_that_chose(compared: Comparison) -> None:
    def scored_on(folder: Path) -> set[bytes]:
        pixels = RecordedRun.open(folder).test_images.pixels
        return {image.numpy().tobytes() for image in pixels}

    (final,) = compared.groups[1].runs
    for trial in compared.tuned[1].tried.values():
        chosen_by = scored_on(trial.cells[0].path)
        assert chosen_by
        assert not chosen_by & scored_on(final.folder)


def test_the_same_again_costs_nothing(
    compared: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(run: Run) -> Iterator[RoundRow]:
        raise AssertionError(run.folder)

    monkeypatch.setattr(Run, "rounds", nobody)
    methods = ["fedavg", "fedprox", Mine()]
    experiment = tiny(compared.folder)
    assert plan_comparison(experiment, methods, (0,), tune=3).todo == []
    again = dcfl.compare(experiment, methods=methods, seeds=(0,), tune=3, parallel=1)
    assert [one.to_json() for one in again.tuned] == [one.to_json() for one in compared.tuned]


def test_stopped_it_goes_on_with_the_same_trials(compared: Comparison, tmp_path: Path) -> None:
    plan = plan_comparison(tiny(tmp_path), ["fedavg", "fedprox"], (0,), tune=3)

    def stop(news: Any) -> None:
        if news.name == "fedprox-mu0.01-lr0.01-seed101":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.carry_out(1, stop)
    plan = plan_comparison(tiny(tmp_path), ["fedavg", "fedprox"], (0,), tune=3)
    assert 0 < len(plan.todo) < 3 * 2 * 2 + 2
    found = plan.carry_out(1)
    assert [one.to_json() for one in found.tuned] == [
        one.to_json() for one in compared.tuned if one.label != "mine"
    ]


def test_a_method_that_always_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    methods = ["fedavg(training.lr=0.05)", "dcfl-sw(mu=1e37)"]
    wrecked = tiny(
        tmp_path, training={"epochs": 1, "batch_size": 16, "lr": 0.05, "max_grad_norm": 0.0}
    )
    found = dcfl.compare(wrecked, methods=methods, tune=3, parallel=1)
    assert [group.method for group in found.groups] == ["fedavg"]
    assert list(found.failures) == ["dcfl-sw(mu=1e+37)"]
    assert len(found.tuned[1].tried) == 3
    assert found.tuned[0].keys == []
    with pytest.raises(TooFewClients, match="no trial finished"):
        dcfl.compare(wrecked, methods=methods[1:], tune=3, parallel=1)


@pytest.mark.parametrize("trials", [-1, 1, 2, 13])
def test_too_few_or_too_many_trials(trials: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--tune {trials}: every method has 3 to 12 trials"):
        plan_comparison(tiny(tmp_path), ["fedavg"], (), tune=trials)


def test_other_folders_are_refused_before_anything_is_trained(compared: Comparison) -> None:
    other = {"federation": {"rounds": 3, "participation": 0.5}}
    with pytest.raises(RunFolderError, match=r"rounds was 2 and would be 3"):
        plan_comparison(tiny(compared.folder, **other), ["fedavg"], (0,), tune=3).check()
    with pytest.raises(RunFolderError, match="another comparison"):
        plan_comparison(
            tiny(compared.folder, data={**TINY["data"], "alpha": 9.0}), ["moon"], (0,), tune=3
        ).check()
