"""The charts of a sweep's page: what they show is what the trials have scored."""

from __future__ import annotations

from pathlib import Path

from dcfl.comparisons.space import short_names
from dcfl.comparisons.sweep_page import MOST_CURVES, scores_chart, sweep_page, trial_groups
from dcfl.comparisons.sweep_result import SweepResult
from dcfl.report.charts import Chart, accuracy_chart
from tests.comparisons.small_sweeps import hand_made_sweep, tiny_sweep
from tests.paper.hand_made import pretend


def chart_of(result: SweepResult) -> Chart:
    chart = scores_chart(result.space.dimensions, result.ranked)
    assert chart is not None
    return chart


def test_two_lists_are_a_matrix_of_scores(tmp_path: Path) -> None:
    settings = ["training.lr=0.1,0.2", "method.mu=0.5,1,5"]
    chart = chart_of(hand_made_sweep(tmp_path, settings, [[10], [20], [30], [40], [50], [60]]))
    assert chart["kind"] == "matrix"
    assert chart["cells"] == [[10, 20, 30], [40, 50, 60]]
    assert (chart["row"], chart["rows"]) == ("training.lr", ["0.1", "0.2"])
    assert (chart["column"], chart["columns"]) == ("method.mu", ["0.5", "1", "5"])
    assert chart["shade"] == "range"  # 10 to 60 %, not 0 to 60: small differences are seen


def test_one_key_is_a_line_through_the_means(tmp_path: Path) -> None:
    chart = chart_of(
        hand_made_sweep(tmp_path, ["training.lr=0.1,0.2,0.4"], [[10, 20], [50, 60], [30, 40]])
    )
    line, dots, seeds = chart["panels"][0]["series"]
    assert (line["x"], line["y"]) == ([0, 1, 2], [15, 55, 35])
    assert sorted(zip(dots["x"], dots["y"], strict=True)) == [(0, 15), (1, 55), (2, 35)]
    assert sorted(zip(seeds["x"], seeds["y"], strict=True)) == [
        (0, 10), (0, 20), (1, 50), (1, 60), (2, 30), (2, 40),
    ]  # fmt: skip
    assert chart["x"]["names"] == ["0.1", "0.2", "0.4"]
    assert "training.lr = 0.2" in dots["notes"][0]  # the best comes first
    assert "55.00 ± 7.07 %" in dots["notes"][0]


def test_three_keys_have_no_picture(tmp_path: Path) -> None:
    settings = ["training.lr=0.1,0.2", "method.mu=0.5,1", "training.epochs=1,2"]
    scores = [[float(score)] for score in range(10, 18)]
    page = sweep_page(hand_made_sweep(tmp_path, settings, scores)).html
    assert (page.count("data-chart="), "Each trial" in page) == (1, False)


def test_keys_of_one_name_keep_their_tables() -> None:
    assert short_names(["training.lr", "method.mu"]) == ["lr", "mu"]
    assert short_names(["data.seed", "model.seed"]) == ["data.seed", "model.seed"]


def test_curves_of_the_best_are_drawn_and_those_of_others_wait(tmp_path: Path) -> None:
    values = ",".join(str(number) for number in range(1, MOST_CURVES + 3))
    scores = [[float(number), float(number) + 2] for number in range(1, MOST_CURVES + 3)]
    result = hand_made_sweep(tmp_path, [f"method.mu={values}"], scores)
    groups = trial_groups(result.ranked, [str(trial.number) for trial in result.ranked])
    assert len(groups) == MOST_CURVES
    assert groups[0].spread("ema_accuracy").mean == MOST_CURVES + 3  # over both seeds
    chart = accuracy_chart(groups)
    assert chart is not None
    hidden = ["hidden" in method for method in chart["methods"]]
    assert hidden == [False] * 5 + [True] * (MOST_CURVES - 5)
    page = sweep_page(result).html
    assert f"The {MOST_CURVES} best trials are in the legend" in page
    assert "the legend adds the others" in page


def test_a_trial_that_has_no_round_yet_has_no_curve(tmp_path: Path) -> None:
    plan = tiny_sweep(tmp_path)
    pretend(plan.planned[1].cells[0], [30.0], finished=False)
    trials = [trial.read_again() for trial in plan.planned]
    (group,) = trial_groups(trials, "abcd")
    assert group.label == "b"
