import math
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dcfl.comparisons.groups import group_runs
from dcfl.report import plots
from dcfl.runs.folder import RecordedRun
from tests.report.folders import some_counts, write_run

CURVES = [plots.accuracy_figure, plots.loss_figure, plots.traffic_figure]


def words(figure: Figure) -> list[str]:
    """The text in the SVG, which must be well-formed."""
    root = ElementTree.fromstring(plots.as_svg(figure))
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def axes_of(figure: Figure) -> Axes:
    return figure.axes[0]


def bold_line(runs: list[RecordedRun]) -> list[tuple[float, float]]:
    lines = axes_of(plots.accuracy_figure(group_runs(runs))).get_lines()
    (bold,) = [line for line in lines if line.get_linewidth() > 2]
    return [(float(x), float(y)) for x, y in zip(*bold.get_data(), strict=True)]


def test_importing_the_library_does_not_import_matplotlib() -> None:
    code = "import sys, dcfl.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("draw", CURVES)
@pytest.mark.parametrize(
    ("accuracies", "row_changes"),
    [
        ([], {}),
        ([30.0], {}),
        ([30.0, 40.0], {1: {"train_loss": None, "ok": 0}}),
        ([30.0, 40.0, 50.0], {2: {"accuracy": None, "ema_accuracy": None, "loss": math.nan}}),
        ([30.0, 40.0], {2: {"round": 7}}),
        ([100.0, 100.0], {1: {"loss": 1e9}}),
    ],
    ids=["no round", "one round", "no train loss", "not evaluated", "gap", "exploded"],
)
def test_curves_of_odd_runs(draw, accuracies, row_changes, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", accuracies, row_changes=row_changes, finished=False)
    assert words(draw(group_runs([run])))


def test_bold_is_the_mean_of_the_moving_averages(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "0", [10.0, 20.0]),  # EMA 10, 11
        write_run(tmp_path / "1", [30.0, 40.0], seed=1),  # EMA 30, 31
    ]
    assert bold_line(runs) == [(1.0, 20.0), (2.0, pytest.approx(21.0))]


def test_the_mean_stops_where_a_run_does(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(seed), accuracies, seed=seed, finished=False, settings=same)
        for same in [{"federation.rounds": 2}]
        for seed, accuracies in enumerate([[10.0, 20.0], [30.0]])
    ]
    assert bold_line(runs) == [(1.0, 20.0)]


def test_traffic_adds_up_both_directions(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [10.0, 20.0])
    line = axes_of(plots.traffic_figure(group_runs([run]))).get_lines()[-1]
    assert list(line.get_xdata()) == [3.0, 6.0]  # megabytes


def test_every_method_is_in_the_legend_in_a_look_of_its_own(tmp_path: Path) -> None:
    names = [f"method{index}" for index in range(16)]
    runs = [write_run(tmp_path / name, method=name) for name in names]
    figure = plots.accuracy_figure(group_runs(runs))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    looks = {(line.get_color(), line.get_linestyle()) for line in legend.get_lines()}
    assert len(looks) == len(names)


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (20, 10), (100, 100), (300, 200)])
def test_partition_labels_are_thinned_until_they_fit(clients: int, classes: int) -> None:
    figure = plots.partition_figure(
        some_counts(clients, classes), [f"c{i}" for i in range(classes)]
    )
    heat = figure.axes[1]
    assert 1 <= len(heat.get_xticks()) <= 12
    assert 1 <= len(heat.get_yticks()) <= 25
    assert len(plots.as_svg(figure)) < 300_000


def spread_counts(clients: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 40, (clients, 10)) * (rng.random((clients, 10)) < 0.4)


def test_many_clients_are_drawn_as_histograms() -> None:
    counts = spread_counts(20_000)
    figure = plots.partition_figure(counts, [str(label) for label in range(10)])
    assert len(figure.axes) == 3
    for axes in figure.axes:
        (steps,) = axes.patches
        assert steps.get_data().values.sum() == 20_000  # nobody falls between two bars
    held = figure.axes[1].patches[0].get_data()
    expected = np.bincount((counts > 0).sum(axis=1))
    assert held.values.tolist() == expected[expected.nonzero()[0][0] :].tolist()
    assert len(plots.as_svg(figure)) < 100_000


@pytest.mark.parametrize("counts", [np.ones((301, 2)), np.zeros((400, 3)), np.full((301, 2), 2e9)])
def test_many_clients_that_are_all_alike(counts: NDArray[np.float64]) -> None:
    figure = plots.partition_figure(counts.astype(np.int64), ["a", "b", "c"][: counts.shape[1]])
    assert plots.as_svg(figure)


def test_hostile_class_names_are_only_text() -> None:
    names = ["<script>alert(1)</script>", "$\\frac{$", "a\nb\x01", "鳥類", "&amp;"]
    shown = words(plots.partition_figure(some_counts(3, 5), names))
    assert "<script>ale…ipt>" in shown
    assert {"$\\frac{$", "a\\nb\\x01", "鳥類", "&amp;"} <= set(shown)
