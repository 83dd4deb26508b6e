"""Methods over one setting or two: curves, cells and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dcfl
from dcfl.comparisons.comparison import Comparison
from dcfl.comparisons.pairs import Paired
from dcfl.comparisons.space import read_choices
from dcfl.errors import ConfigError
from dcfl.report.charts import lines_over, reach
from dcfl.report.comparison_section import over_section, points_json
from tests.command_line import calls

TINY = {
    "data.clients": 4,
    "data.train_images": 200,
    "data.test_images": 100,
    "federation.rounds": 2,
    "training.epochs": 1,
}
METHODS = ["fedavg", "dcfl-pw"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("over") / "runs"
    over = {"data.alpha": [math.inf, 0.3]}
    return dcfl.compare(methods=METHODS, seeds=[0, 1], over=over, out=out, parallel=1, **TINY)


def test_each_value_is_a_comparison_of_its_own(compared: Comparison) -> None:
    tasks = compared.standing.tasks
    assert list(tasks) == ["data.alpha=inf", "data.alpha=0.3"]
    assert all([one.method for one in groups] == METHODS for groups in tasks.values())
    rows = points_json(compared.standing, compared.over)
    assert [(row["data.alpha"], row["method"]) for row in rows] == [
        (alpha, method) for alpha in (0.3, "inf") for method in METHODS
    ]
    group = tasks["data.alpha=0.3"][1]
    scores = tuple(group.scores("ema_accuracy").values())
    assert (rows[1]["mean"], rows[1]["interval"]) == (np.mean(scores), Paired(scores).interval)
    pair = compared.standing.gain(group)
    assert pair is not None
    assert rows[1]["gain"]["mean"] == pair.paired.spread.mean
    assert rows[0]["gain"] is None
    page = compared.report.read_text("utf-8")
    assert 0 < page.index(">Over data.alpha<") < page.index(">Result<")  # what was asked for


def test_a_line_per_method_with_its_intervals_on_the_axis(compared: Comparison) -> None:
    own, gain = over_section(compared.standing, compared.over).pictures
    assert own.chart is not None
    assert gain.chart is not None
    (panel,) = own.chart["panels"]
    assert [one["label"] for one in panel["series"]] == METHODS
    assert own.chart["x"]["names"] == ["0.3", "inf"]
    ends = [end for one in panel["series"] for end in (*one["low"], *one["high"]) if end]
    assert own.chart["y"]["low"] < min(ends) < max(ends) < own.chart["y"]["high"]
    assert [one["label"] for one in gain.chart["panels"][0]["series"]] == METHODS[1:]


def test_the_experiments_own_value_shares_the_cells_of_a_plain_comparison(
    compared: Comparison, tmp_path: Path
) -> None:
    cells = sorted(path.name for path in compared.folder.iterdir() if path.is_dir())
    marks = [name.removesuffix("-seed0") for name in cells if name.endswith("-seed0")]
    assert marks == ["dcfl-pw-alphainf", "dcfl-pw", "fedavg-alphainf", "fedavg"]
    wrote = {path: path.stat().st_mtime_ns for path in compared.folder.glob("*/summary.json")}
    more = {"data.alpha": [0.3, 1.0]}
    again = dcfl.compare(
        methods=["fedavg"], over=more, out=tmp_path / "b", reuse=[compared.folder], **TINY
    )
    assert {path.stat().st_mtime_ns for path in wrote} == {*wrote.values()}
    assert [path.name for path in (tmp_path / "b").iterdir() if path.is_dir()] == [
        "fedavg-alpha1-seed0"
    ]
    assert len(again.standing.tasks) == 2


def test_two_settings_are_places_and_panels(tmp_path: Path) -> None:
    over = {"training.lr": [0.01, 0.05], "training.batch_size": [16, 32]}
    settings = {**TINY, "federation.rounds": 1}
    out = tmp_path / "runs"
    found = dcfl.compare(methods=["fedavg"], over=over, out=out, parallel=1, **settings)
    assert [group.method for group in found.groups] == ["fedavg"] * 4  # not four methods
    (own,) = over_section(found.standing, found.over).pictures
    assert own.chart is not None
    titles = [panel["title"] for panel in own.chart["panels"]]
    assert titles == ["training.batch_size = 16", "training.batch_size = 32"]


@pytest.mark.slow
def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"{key}={value}" for key, value in {**TINY, "federation.rounds": 1}.items()]
    figures = tmp_path / "figures"
    code, out, err = calls(monkeypatch, capsys)(
        "compare", *settings, "--methods", "fedavg", "--over", "data.alpha=0.3,inf",
        "--out", tmp_path / "runs", "--figures", figures, "--json", "--parallel", "1",
    )  # fmt: skip
    assert code == 0, err
    assert [row["data.alpha"] for row in json.loads(out)["over"]] == [0.3, "inf"]
    assert (figures / "over-data-alpha-ema.pdf").is_file()


@pytest.mark.parametrize("setting", ["data.alpha=0.3", "data.alpha=0.1:1", "data.alpha=1,1"])
def test_one_value_or_a_range_is_no_curve(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.alpha"):
        read_choices(setting)


@pytest.mark.parametrize("key", ["federation.seed", "method.mu", "engine.workers"])
def test_what_is_no_setting_of_all_methods_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"--over {key}"):
        dcfl.compare(over={key: [1, 2]})
    with pytest.raises(ConfigError, match="one setting or two"):
        dcfl.compare(over={f"data.{one}": [2, 3] for one in ("clients", "crop", "cutout")})


def test_lines_stand_beside_each_other_and_say_what_is_unknown() -> None:
    values = np.array([[[1.0, 2.0], [3.0, np.nan]]] * 3)
    values[1:, 0, 1] = np.nan
    first, second = lines_over(["a", "b"], ["one", "two"], values)
    assert first["x"][0] < 0 < second["x"][0]
    assert first["notes"] == ["a: 1.00\nfrom 1.00 to 1.00", "b: 2.00"]
    assert second["y"] == [3, None]
    assert reach(np.array([np.nan])) == {}
