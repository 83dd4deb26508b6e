"""The pictures of a sweep's page: what they show is what the trials have scored."""

from __future__ import annotations

from pathlib import Path

from dcfl.comparisons.space import short_names
from dcfl.comparisons.sweeping import SweepResult, sweep_page
from dcfl.report.charts import Chart
from tests.comparisons.small_sweeps import hand_made_sweep


def chart_of(result: SweepResult) -> Chart:
    (picture,) = [one for section in sweep_page(result).sections for one in section.pictures]
    assert picture.chart is not None
    return picture.chart


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
    (line,) = chart["panels"][0]["series"]
    assert (line["x"], line["y"]) == ([0, 1, 2], [15, 55, 35])
    assert (line["low"], line["high"]) == ([10, 50, 30], [20, 60, 40])
    assert chart["x"]["names"] == ["0.1", "0.2", "0.4"]


def test_three_keys_have_no_picture(tmp_path: Path) -> None:
    settings = ["training.lr=0.1,0.2", "method.mu=0.5,1", "training.epochs=1,2"]
    scores = [[float(score)] for score in range(10, 18)]
    assert "data-chart=" not in sweep_page(hand_made_sweep(tmp_path, settings, scores)).html


def test_keys_of_one_name_keep_their_tables() -> None:
    assert short_names(["training.lr", "method.mu"]) == ["lr", "mu"]
    assert short_names(["data.seed", "model.seed"]) == ["data.seed", "model.seed"]


def test_trials_that_tie_are_told(tmp_path: Path) -> None:
    result = hand_made_sweep(tmp_path, ["training.lr=0.1,0.2,0.4"], [[50], [50], [30]])
    assert "One other trial scored as high." in result.headline
