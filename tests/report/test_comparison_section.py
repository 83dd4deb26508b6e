"""The tables of a comparison, on pages and in files."""

import csv
from pathlib import Path

import pytest

from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.standing import Ranking, Standing
from dcfl.comparisons.verdict import MANY_METHODS
from dcfl.report.comparison_section import (
    comparison_sections,
    costs_table,
    csv_text,
    latex_text,
    ranking_section,
)
from dcfl.report.methods_table import methods_table
from tests.report.folders import write_run


@pytest.fixture
def compared(tmp_path: Path) -> Standing:
    """dcfl-pw is 2 and 4 points above fedavg; a hostile name is on a par with it."""
    runs = [
        write_run(tmp_path / f"{index}-{seed}", [value - 30, value], method=method, seed=seed)
        for index, (method, values) in enumerate(
            {"fedavg": (50.0, 54.0), "dcfl-pw": (52.0, 58.0), "a_b & 100%": (50.0, 54.0)}.items()
        )
        for seed, value in enumerate(values)
    ]
    return Standing(group_runs(runs))


def test_the_results_have_intervals_and_wins(compared: Standing) -> None:
    names = ("method", "seeds", "MAX", "EMA", "gain", "interval", "p", "w/t/l", "worst")
    table = methods_table(compared, compared.groups, names)
    assert table.columns[4:8] == ["EMA against fedavg", "95 % interval", "p", "w/t/l"]
    first, second, third = table.rows
    assert first[4:8] == ["–"] * 4
    assert second[4:8] == ["+3.00", "−9.71 to +15.71", "0.410", "2/0/0"]  # twice 0.205
    assert third[4:8] == ["0.00", "–", "1.000", "0/2/0"]
    assert second[2:4] == ["55.00 ± 4.24", "28.00 ± 4.24"]
    assert second[-1] == "5.50 ± 0.42"


def test_all_pairs_and_costs(compared: Standing) -> None:
    differences, costs = comparison_sections(compared)
    (pairs,) = differences.tables
    assert [row[0] for row in pairs.rows] == [
        "dcfl-pw − fedavg",
        "a_b & 100% − fedavg",
    ]
    assert pairs.rows[0][3:] == ["0.205", "0.410", "2/0/0", "15.71"]
    (picture,) = differences.pictures
    assert picture.chart is not None
    (dots,) = picture.chart["panels"][0]["series"]
    assert (dots["y"], dots["low"][1], dots["high"][1]) == ([0, 3], -9.7062, 15.7062)
    every, _ = comparison_sections(Standing(compared.groups, all_pairs=True))
    assert every.tables[0].rows[-1][0] == "a_b & 100% − dcfl-pw"
    assert "corrected for two comparisons with fedavg" in pairs.note
    (table,) = costs.tables
    assert table.title == "To reach fedavg's EMA, 25.00 % on average"
    assert table.rows[0] == ["fedavg", "2", "6.0", "0.0", "2", "2 of 2"]
    assert table.rows[1] == ["dcfl-pw", "1.5", "4.5", "0.0", "2", "2 of 2"]  # at once in seed 1


def test_pairs_of_very_many_are_counted(tmp_path: Path) -> None:
    """As of a sweep, whose points are methods here."""
    count = MANY_METHODS + 1
    runs = [
        write_run(
            tmp_path / f"{number}-{seed}",
            [20.0 + 10.0 * number / count + seed],
            settings={"training.lr": 0.1 + number},
            seed=seed,
        )
        for number in range(count)
        for seed in (0, 1)
    ]
    differences, costs = comparison_sections(Standing(group_runs(runs)))
    assert not differences.tables
    best, others = differences.paragraphs
    assert best.startswith("fedavg training.lr=12.1 has the highest EMA accuracy")
    assert others.startswith(f"Of {count - 1} differences to fedavg training.lr=0.1, ")
    assert len(costs.tables[0].rows) == count


def test_the_csv_has_a_row_per_method_with_all_numbers(compared: Standing) -> None:
    rows = list(csv.DictReader(csv_text(compared).splitlines()))
    assert [row["method"] for row in rows] == ["fedavg", "dcfl-pw", "a_b & 100%"]
    reference, better, _ = rows
    assert reference["gain"] == reference["gain_p_corrected"] == ""
    assert float(better["gain"]) == pytest.approx(3.0)
    assert float(better["gain_interval_low"]) == pytest.approx(-9.706, abs=1e-3)
    assert float(better["gain_p_value"]) == pytest.approx(0.2048, abs=1e-4)
    assert (better["gain_wins"], better["gain_ties"], better["gain_losses"]) == ("2", "0", "0")
    assert (better["seeds"], better["target_rounds"], better["target_of"]) == ("2", "1.5", "2")
    assert float(better["worst_decile_accuracy"]) == pytest.approx(5.5)


def test_latex_is_escaped_and_whole(compared: Standing) -> None:
    text = latex_text(compared)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    assert r"a\_b \& 100\% &" in text
    assert "% Differences, seed by seed\n" in text
    assert text.isascii()


def test_latex_has_the_best_in_bold_and_marks_what_is_not_told_from_it(tmp_path: Path) -> None:
    curves = {"fedavg": (50.0, 51.4, 52.0), "near": (51.0, 49.0, 54.0), "best": (52.0, 53.5, 54.0)}
    runs = [
        write_run(tmp_path / f"{method}-{seed}", [value], method=method, seed=seed)
        for method, values in curves.items()
        for seed, value in enumerate(values)
    ]
    _, results, *_ = latex_text(Standing(group_runs(runs))).split(r"\midrule")
    fedavg, near, best = results.strip().split("\n")[:3]
    assert best.count(r"\textbf{53.17 $\pm$ 1.04}") == 2  # MAX and EMA
    assert near.count(r"51.33 $\pm$ 2.52$^{\dagger}$") == 2
    assert "dagger" not in fedavg  # below in every seed, by about as much
    assert "$^{" not in latex_text(Standing(group_runs(runs[::3])))  # one seed cannot be tested


def test_ranks_have_bars_as_long_as_the_critical_difference() -> None:
    ranking = Ranking({f"method-{rank}": float(rank) for rank in range(1, 8)}, 10, 0.001)
    (picture,) = ranking_section(ranking).pictures
    assert picture.chart is not None
    (dots,) = picture.chart["panels"][0]["series"]
    assert picture.chart["x"]["names"] == list(ranking.mean_ranks)
    assert dots["y"] == [1, 2, 3, 4, 5, 6, 7]
    lengths = [high - low for low, high in zip(dots["low"], dots["high"], strict=True)]
    assert lengths == pytest.approx([2.85] * 7, abs=0.01)  # 2.948 sqrt(7 * 8 / 60)


def test_virtual_seconds_have_their_column_though_nobody_reaches_the_target(
    tmp_path: Path,
) -> None:
    timed = {1: {"virtual_time": 7.0}}
    runs = [
        write_run(tmp_path / method, [50.0], method=method, row_changes=timed)
        for method in ("fedavg", "moon")
    ]
    for target, cell in ((40.0, "7.0"), (90.0, "–")):
        table = costs_table(Standing(group_runs(runs), target=target), "")
        assert table.columns[4] == "virtual seconds"
        assert [row[4] for row in table.rows] == [cell, cell]
