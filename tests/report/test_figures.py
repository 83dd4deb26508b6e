"""Figures for print: what they draw is what the charts have."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import dcfl
from dcfl.comparisons.groups import group_runs
from dcfl.report import write_report
from dcfl.report.charts import accuracy_chart, histogram, loss_chart, matrix, partition_chart, plot
from dcfl.report.charts import series as line
from dcfl.report.document import Picture, Section
from dcfl.report.figures import figure, save, write_figures
from dcfl.runs.folder import RecordedRun
from tests.report.folders import TEN, some_counts, write_run


def words(drawn: Figure, folder: Path) -> list[str]:
    """The text in the SVG, which must be well-formed."""
    save(drawn, folder / "drawn.svg")
    root = ElementTree.fromstring((folder / "drawn.svg").read_bytes())
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def curves(*runs: RecordedRun, across: str = "") -> Figure:
    chart = accuracy_chart(group_runs(runs))
    assert chart is not None
    return figure(chart, across)


def bold(drawn: Figure) -> list[list[float]]:
    """The places of the last line, which is drawn on top."""
    return np.array(drawn.axes[0].get_lines()[-1].get_xydata()).round(9).tolist()


def test_bold_is_the_mean_of_the_moving_averages_where_all_runs_have_one(tmp_path: Path) -> None:
    first = write_run(tmp_path / "0", [10.0, 20.0])  # EMA 10, 11
    second = write_run(tmp_path / "1", [30.0, 40.0], seed=1)  # EMA 30, 31
    assert bold(curves(first, second)) == [[1, 20], [2, 21]]
    assert bold(curves(first, across="sent")) == [[3, 10], [6, 11]]  # megabytes, up and down
    short = write_run(
        tmp_path / "2", [30.0], seed=1, finished=False, settings={"federation.rounds": 2}
    )
    long = write_run(tmp_path / "3", [10.0, 20.0], finished=False)
    assert bold(curves(long, short)) == [[1, 20]]


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{method}{seed}", [accuracy], method=method, seed=seed)
        for method, accuracies in {"fedavg": (50.0, 54.0), "moon": (52.0, 59.0)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    _, below = curves(*runs).axes
    assert below.get_lines()[0].get_xydata().tolist() == [[1, 3.5]]


@pytest.mark.parametrize(
    ("accuracies", "changes"),
    [
        ([30.0], {}),
        ([30.0, 40.0, 50.0], {2: {"accuracy": None, "ema_accuracy": None, "loss": None}}),
        ([100.0, 100.0], {1: {"loss": 1e9}}),
    ],
    ids=["one round", "not evaluated", "exploded"],
)
def test_curves_of_odd_runs(accuracies, changes, tmp_path: Path) -> None:
    groups = group_runs([write_run(tmp_path / "run", accuracies, row_changes=changes)])
    for chart in (accuracy_chart(groups), loss_chart(groups)):
        assert chart is not None
        assert "round" in words(figure(chart), tmp_path)


def test_every_method_is_in_the_legend_in_a_look_of_its_own(tmp_path: Path) -> None:
    names = [f"method{index}" for index in range(12)]
    drawn = curves(*(write_run(tmp_path / name, method=name) for name in names))
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    colours = {shown.get_color() for shown in legend.get_lines()}
    assert len(colours) == 7
    grey = {(str(shown._dash_pattern), shown.get_marker()) for shown in legend.get_lines()}  # type: ignore[attr-defined]
    assert len(grey) == len(names)
    assert drawn.get_figwidth() == 3.4  # a column


def test_a_number_that_some_methods_have_not_logged_is_drawn_of_the_others(tmp_path: Path) -> None:
    logged = {number: {"logged": {"batch": number}} for number in (1, 2, 3)}
    for method, changes in {"fedavg": {}, "moon": logged, "fedprox": logged}.items():
        for seed in (0, 1):
            write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, row_changes=changes)
    write_report(tmp_path, figures=tmp_path / "print")
    drawn = (tmp_path / "print" / "training-numbers-of-your-own.svg").read_text()
    assert ">moon<" in drawn
    assert ">fedprox<" in drawn
    assert ">fedavg<" not in drawn


def test_an_accuracy_is_printed_over_its_costs_and_nothing_else_over_them(tmp_path: Path) -> None:
    """What papers show: not every quantity over every axis."""
    for alpha in (0.1, 0.5):
        for method in ("fedavg", "moon"):
            for seed in (0, 1):
                write_run(
                    tmp_path / f"{method}{alpha}{seed}",
                    method=method,
                    seed=seed,
                    settings={"data.alpha": alpha, "data.seed": seed},
                    partition_sha256=f"{alpha}{seed}",
                )
    write_report(tmp_path, figures=tmp_path / "print", over=["data.alpha"])
    assert {path.stem for path in (tmp_path / "print").iterdir()} == {
        "over-data-alpha-ema",
        "over-data-alpha-ema-against-fedavg",
        "result-accuracy-over-rounds",
        "result-accuracy-over-rounds-sent",
        "result-accuracy-over-rounds-work",
        "training-test-loss-over-rounds",
        "who-owned-which-samples-alpha-0-1-seed-0",
        "who-owned-which-samples-alpha-0-5-seed-0",
    }


def test_dots_of_two_methods_have_different_shapes() -> None:
    dots = [line(name, [0, 1], [at, 2], at, "points") for at, name in enumerate("ab")]
    drawn = figure(plot({"label": ""}, {"label": ""}, [{"series": dots}]))
    assert len({one.get_marker() for one in drawn.axes[0].get_lines()}) == 2


def test_panels_have_their_series_names_and_intervals(tmp_path: Path) -> None:
    nothing = float("nan")
    ends = {"low": [4, nothing], "high": [7, nothing]}
    dots = line("dots", [0, 1], [5, nothing], 0, "points", **ends)
    steps = histogram("steps", [0, 1, 2], [3, 4], 1)
    names = {"label": "", "names": ["<left>", "$right"], "low": -0.5, "high": 1.5}
    panels = [{"title": "one", "series": [dots]}, {"x": {"label": "x"}, "series": [steps]}]
    drawn = figure(plot(names, {"label": "up", "log": True}, panels))
    assert {"<left>", "$right", "one", "x", "up", "dots", "steps"} <= {*words(drawn, tmp_path)}
    interval, *_ = drawn.axes[0].collections[0].get_segments()
    assert interval.tolist() == [[0, 4], [0, 7]]


@pytest.mark.parametrize("shade", ["", "row", "range"])
def test_a_matrix_has_its_numbers(shade: str, tmp_path: Path) -> None:
    cells = np.array([[3.0, 1.0], [0.0, np.nan]])
    drawn = figure(matrix(cells, ("r", ["a", "b"]), ("c", ["d", "e"]), "v", shade))
    shown = words(drawn, tmp_path)
    assert {"a", "b", "d", "e", "r", "c"} <= {*shown}
    assert "3" in shown
    assert not any("nan" in word for word in shown)


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (20, 10), (300, 100)])
def test_names_beside_a_matrix_are_thinned_until_they_fit(clients: int, classes: int) -> None:
    chart = partition_chart(some_counts(clients, classes), [f"c{i}" for i in range(classes)])
    heat = figure(chart).axes[1]
    assert 1 <= len(heat.get_xticks()) <= 12
    assert 1 <= len(heat.get_yticks()) <= 25


def test_hostile_class_names_are_only_text(tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "$\\frac{$", "a\x01b", "鳥類", "&amp;"]
    shown = words(figure(partition_chart(some_counts(3, 5), names)), tmp_path)
    assert "<script>ale…ipt>" in shown
    assert {"$\\frac{$", "a\\x01b", "鳥類", "&amp;"} <= {*shown}


def test_each_chart_has_a_file_of_its_own_and_the_users_style_plays_no_part(tmp_path: Path) -> None:
    chart = partition_chart(some_counts(3, 10), TEN)
    pictures = [Picture("../Same <title>", "", "", chart)] * 2 + [Picture("None", "", "", None)]
    first = write_figures([Section("A / B", pictures=pictures)], tmp_path / "one")
    assert [path.name for path in first] == [
        f"a-b-same-title{number}{ending}" for number in ("", "-2") for ending in (".svg", ".pdf")
    ]
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        again = write_figures([Section("A / B", pictures=pictures)], tmp_path / "two")
        assert mpl.rcParams["font.size"] == 30
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_a_matplotlibrc_in_the_working_folder_is_not_even_read(tmp_path: Path) -> None:
    """It may be somebody else's folder, and a preamble of LaTeX runs programs. A pipe that is read
    never ends."""
    os.mkfifo(tmp_path / "matplotlibrc")
    code = (
        "from pathlib import Path; import numpy as np; from dcfl.report import figures as f\n"
        "from dcfl.report.charts import matrix\n"
        "chart = matrix(np.ones((1, 1)), ('r', ['a']), ('c', ['b']), 'v', 'count')\n"
        "for ending in ('svg', 'pdf'): f.save(f.figure(chart), Path(f'drawn.{ending}'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(dcfl.__file__).parents[1])},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "drawn.svg").is_file()
