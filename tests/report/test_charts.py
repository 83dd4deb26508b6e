"""The data of charts: what is drawn is what was recorded."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dcfl.comparisons.groups import Group, group_runs
from dcfl.comparisons.standing import client_seconds_so_far
from dcfl.report import charts
from dcfl.report.charts import MANY_CURVES, accuracy_chart, chart_note, loss_chart
from dcfl.report.client_sections import client_mix_picture, final_accuracies
from dcfl.report.document import Picture
from dcfl.runs.folder import RecordedRun
from tests.report.folders import TEN, write_run


def group(folder: Path, *curves: list[float], **more: object) -> list[Group]:
    runs = [
        write_run(folder / str(seed), curve, seed=seed, **more)  # type: ignore[arg-type]
        for seed, curve in enumerate(curves)
    ]
    return group_runs(runs)


def test_curves_are_the_recorded_rows(tmp_path: Path) -> None:
    groups = group(tmp_path, [20.0, 60.0, 50.0])
    chart = accuracy_chart(groups)
    assert chart is not None
    (method,) = chart["methods"]
    (run,) = method["runs"]
    assert run["round"] == [1, 2, 3]
    assert run["y"]["accuracy"] == [20, 60, 50]
    assert run["y"]["ema_accuracy"] == [20, 24, 26.6]
    assert run["x"]["sent"] == [3, 6, 9]  # MB: a million up and two down in each round
    assert run["x"]["seconds"] == [1.5, 3, 4.5]
    assert [axis["name"] for axis in chart["x"]] == ["round", "sent", "seconds", "work"]
    assert run["counted"]


def test_rounds_that_were_not_scored_and_quantities_that_no_run_has(tmp_path: Path) -> None:
    unknown = {"client_accuracy": None, "worst_decile_accuracy": None}
    scores = ("accuracy", "max_accuracy", "ema_accuracy", "loss")
    changes = {1: unknown, 2: {**unknown, **dict.fromkeys(scores)}, 3: unknown}
    groups = group(tmp_path, [20.0, 60.0, 50.0], row_changes=changes)
    chart = accuracy_chart(groups)
    assert chart is not None
    assert [one["name"] for one in chart["y"]] == ["accuracy"]
    assert chart["methods"][0]["runs"][0]["round"] == [1, 3]
    assert chart["methods"][0]["runs"][0]["x"]["sent"] == [3, 9]  # the round between was sent too
    assert accuracy_chart(group(tmp_path / "none", [], finished=False)) is None


def test_long_runs_are_thinned_alike_and_keep_their_extremes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "MOST_POINTS", 50)
    monkeypatch.setattr(charts, "FEWEST_POINTS", 10)
    rng = np.random.default_rng(1)
    curves = [rng.uniform(10, 90, 407).round(3).tolist() for _ in range(2)]
    groups = group(tmp_path, *curves)
    chart = accuracy_chart(groups)
    assert chart is not None
    assert "one in 9 is drawn" in chart_note(groups)
    runs = chart["methods"][0]["runs"]
    assert runs[0]["round"] == runs[1]["round"]  # or there would be no mean
    assert 45 <= len(runs[0]["round"]) <= 55
    for run, curve in zip(runs, curves, strict=True):
        assert {max(curve), min(curve), curve[-1]} <= set(run["y"]["accuracy"])
        # The moving averages are those of all rounds.
        rows = RecordedRun.open(tmp_path / str(runs.index(run))).rounds
        expected = [rows[number - 1].ema_accuracy for number in run["round"]]
        assert run["y"]["ema_accuracy"] == pytest.approx(expected, rel=1e-5)
    assert chart_note(group(tmp_path / "short", [1.0, 2.0])) == ""


def test_of_many_curves_the_best_are_drawn_and_the_first(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(number), [10.0 + number], settings={"training.lr": 0.1 * number})
        for number in range(1, MANY_CURVES + 2)
    ]
    groups = group_runs(runs)
    assert len(groups) == MANY_CURVES + 1
    chart = accuracy_chart(groups)
    assert chart is not None
    drawn = [at for at, method in enumerate(chart["methods"]) if "hidden" not in method]
    assert drawn == [0, *range(MANY_CURVES - 4, MANY_CURVES + 1)]
    assert "the five highest EMA are drawn" in chart_note(groups)
    fewer = accuracy_chart(groups[1:])
    assert fewer is not None
    assert not any("hidden" in method for method in fewer["methods"])


def test_a_loss_over_decades_is_logarithmic(tmp_path: Path) -> None:
    losses = {1: {"loss": 20.0}, 2: {"loss": 0.1}}
    steep = loss_chart(group(tmp_path / "steep", [20.0, 60.0], row_changes=losses))
    flat = loss_chart(group(tmp_path / "flat", [20.0, 60.0]))
    assert steep is not None
    assert flat is not None
    assert [one["log"] for one in (steep["y"][0], flat["y"][0])] == [True, False]


def test_work_is_the_time_of_all_clients(tmp_path: Path) -> None:
    clients = [
        {"round": at, "client": c, "outcome": "ok", "reason": "", "metrics": {"seconds": 2.0}}
        for at, c in ((1, 0), (1, 1), (3, 0))
    ]
    run = write_run(tmp_path / "run", [1.0, 2.0, 3.0], clients=clients)
    assert client_seconds_so_far(run) == [4, 4, 6]


def test_a_client_is_a_dot_at_its_mix_under_the_final_model(tmp_path: Path) -> None:
    """Not as it was when the client last took part: another model, tuned on it just before."""

    def took_part(round: int, client: int, accuracy: float | None) -> dict[str, object]:
        row = {"round": round, "client": client, "outcome": "ok", "reason": ""}
        return {**row, "own_accuracy": accuracy}

    counts = np.zeros((4, 10), dtype=int)
    counts[0, :4] = 5, 1, 1, 3
    counts[1, 7] = 8
    rows = [took_part(1, 0, 90.0), took_part(2, 0, 95.0), took_part(3, 1, 75.0)]
    recalls = [{"name": str(n), "images": 5, "recall": 10.0 * n} for n in range(10)]
    kept = {"counts": counts, "clients": rows}
    picture = client_mix_picture(group(tmp_path, [1.0, 2.0, 3.0], **kept, recalls=recalls))
    assert picture is not None
    assert picture.chart is not None
    (dots,) = picture.chart["panels"][0]["series"]
    assert (dots["x"], dots["y"]) == ([50, 100], [12, 70])
    assert dots["notes"][0] == "client 0\n12.00 %\n10 samples: 0 50 %, 3 30 %, 1 10 %"
    unfinished = write_run(tmp_path / "now", [1.0, 2.0, 3.0], **kept, finished=False)
    assert final_accuracies(unfinished) == {1: 75.0}  # of the last round's model alone
    assert client_mix_picture(group(tmp_path / "none", [1.0])) is None


def test_only_small_matrices_have_numbers_in_their_cells() -> None:
    names = [str(number) for number in range(200)]
    for size, numbered in ((20, True), (200, False)):
        of = (("row", names[:size]), ("column", names[:size]))
        assert charts.matrix(np.eye(size), *of, "images")["numbers"] == numbered


def test_what_is_not_a_number_is_null_and_names_are_made_safe() -> None:
    line = charts.series("a\x1b\u202eb", [1, 2], [float("nan"), 1e-7 / 3], 0)
    read = json.loads(Picture("", "", "", {"series": [line]}).chart_json)["series"][0]
    assert read["label"] == "a\\x1b\\u202eb"
    assert read["y"] == [None, 3.33333e-08]


def spread_counts(clients: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 40, (clients, 10)) * (rng.random((clients, 10)) < 0.4)


def test_many_clients_are_histograms_in_which_nobody_is_missing() -> None:
    counts = spread_counts(20_000)
    chart = charts.partition_chart(counts, TEN)
    histograms = [panel["series"][0] for panel in chart["panels"]]
    assert [sum(one["y"]) for one in histograms] == [20_000] * 3
    held = np.bincount((counts > 0).sum(axis=1))
    assert histograms[1]["y"] == [*held[held.nonzero()[0][0] :].tolist(), 0]
    assert charts.partition_chart(np.ones((300, 200), dtype=int), TEN)["kind"] == "plot"
    assert charts.partition_chart(spread_counts(300), TEN)["kind"] == "matrix"


@pytest.mark.parametrize("counts", [np.ones((301, 2)), np.zeros((400, 3)), np.full((301, 2), 2e9)])
def test_many_clients_that_are_all_alike(counts: NDArray[np.float64]) -> None:
    for panel in charts.partition_chart(counts.astype(np.int64), TEN)["panels"]:
        assert sum(panel["series"][0]["y"]) == len(counts)
