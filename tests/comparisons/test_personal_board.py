"""Personal methods beside the others, on sites whose scanners differ: a number is a client's own
model on its own pictures wherever one is shown."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import dcfl
from dcfl.comparisons.comparison import Comparison, plan_comparison
from dcfl.comparisons.contenders import all_but, refusals
from dcfl.config import load_experiment
from dcfl.report import write_report
from dcfl.report.comparison_section import csv_text, latex_text
from tests.command_line import Call
from tests.data.scanners import scanners
from tests.report.test_run_page import Page

METHODS = ["fedavg", "fedbabu", "fedbn"]
FINE_TUNED = ["fedavg", "fedbabu"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        "data.dataset": f"sites:{scanners(tmp_path_factory.mktemp('sites'))}",
        "data.image_size": 8,
        "model.norm": "batch",
        "federation.rounds": 8,
        "training.epochs": 1,
        "training.batch_size": 8,
        "training.lr": 0.1,
    }


@pytest.fixture(scope="module")
def compared(settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("board") / "runs"
    return dcfl.compare(
        methods=METHODS, seeds=(0, 1), out=out, parallel=1, baselines=True, **settings
    )


def own(compared: Comparison, method: str) -> float:
    (group,) = (one for one in compared.groups if one.method == method)
    return group.spread("own_accuracy").mean


def test_fedbn_is_above_fedavg_in_every_place(compared: Comparison, cli: Call) -> None:
    ours, theirs = own(compared, "fedbn"), own(compared, "fedavg")
    assert ours > theirs + 10
    for run in compared.groups[2].runs:
        assert run.summary is not None
        assert compared.groups[2].outcomes[run].own_accuracy == run.summary.personal_accuracy
    standing = compared.standing
    best = standing.best("")
    assert best is not None
    assert best.method == "fedbn"
    told = standing.to_json()
    gains = {row["method"]: row["gain"] for row in told["methods"]}
    assert gains["fedbn"]["mean"] == pytest.approx(ours - theirs)
    assert told["compared_by"] == "own_accuracy"
    sentence = next(one for one in compared.verdict if one.startswith("fedbn "))
    assert "above fedavg" in sentence
    shown = [f"{ours:.2f}", f"{theirs:.2f}"]
    page = Page(compared.report.read_text("utf-8"))
    assert "fedbn has the highest mean accuracy of clients, each on its own" in page.text
    rows = {row[0]: row for row in reversed(page.rows) if row}
    assert [rows[name][2].split()[0] for name in ("fedbn", "fedavg")] == shown
    assert "Clients’ own, %" in page.rows[0]
    assert not any("EMA" in heading for heading in page.rows[0])
    values = {row["method"]: row for row in csv.DictReader(io.StringIO(csv_text(standing)))}
    assert [f"{float(values[n]['own_accuracy']):.2f}" for n in ("fedbn", "fedavg")] == shown
    latex = latex_text(standing)
    assert f"\\textbf{{{shown[0]}" in latex
    assert all(number in compared._repr_html_() for number in shown)
    code, out, _ = cli("report", str(compared.folder), "--out", "again.html", "--json")
    assert code == 0
    assert json.loads(out)["compared_by"] == "own_accuracy"


def test_the_other_accuracy_on_request(compared: Comparison, tmp_path: Path, cli: Call) -> None:
    """The global model of FedBN lacks what every client has for itself."""
    page = write_report(compared.folder, out=tmp_path / "page.html", by="global")
    assert "fedbn has the highest" not in page.read_text("utf-8")
    code, out, _ = cli("report", str(compared.folder), "--by", "global", "--json")
    assert (code, json.loads(out)["compared_by"]) == (0, "ema_accuracy")
    code, _, err = cli("report", str(compared.folder), "--by", "site")
    assert (code, "--by site: global or clients" in err) == (2, True)


def test_what_clients_make_of_a_model_is_a_baseline(compared: Comparison) -> None:
    labels = [group.label for group in compared.baselines]
    assert [one for one in labels if "fine-tuned" in one] == [
        f"baseline: {name}, fine-tuned" for name in FINE_TUNED
    ]
    tuned = compared.baselines[labels.index("baseline: fedavg, fine-tuned")]
    for run in tuned.runs:
        record = json.loads((run.folder / "evaluation-fine-tuned.json").read_text())
        assert record["fine_tuned"] == 5
        mean = record["clients"]["fine_tuned"]["mean"]
        assert tuned.outcomes[run].own_accuracy == pytest.approx(mean)
    assert tuned.spread("own_accuracy").mean > own(compared, "fedavg")
    assert tuned.spread("final_accuracy").mean != tuned.spread("final_accuracy").mean
    written = [path.stat().st_mtime_ns for path in compared.folder.glob("*/evaluation-*.json")]
    assert len(written) == 4


def test_a_sweep_with_personal_points_is_judged_by_what_clients_have(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    """By the global model, FedBN would lose it."""
    varied = {**settings, "method.name": ["fedavg", "fedbn"], "data.holdout": 0.3}
    found = dcfl.sweep(settings=varied, out=tmp_path / "sweep", parallel=1)
    assert found.chosen.point == {"method.name": "fedbn"}
    assert "clients’ own accuracy" in found.report.read_text("utf-8")
    (cell,) = found.chosen.cells
    assert cell.run is not None
    assert cell.run.summary is not None
    assert found.chosen.score == cell.run.summary.personal_accuracy


def test_all_methods_are_those_that_fit(tmp_path: Path) -> None:
    tiny = {"data.train_images": 200, "data.test_images": 50, "data.clients": 4}
    experiment = load_experiment(None, **tiny, **{"training.epochs": 1})
    assert "fedprox" not in list(all_but(["fedprox(mu=1)"]))
    named = ["fedprox", "fedrep", "ditto"]
    assert list(refusals(experiment, named, None)) == ["fedrep"]
    personal = load_experiment(experiment, **{"federation.personal": ["norms"]})
    assert list(refusals(personal, named, None)) == ["fedrep", "ditto"]


@pytest.mark.parametrize(
    ("named", "planned"),
    [
        (["all"], ["fedavg", "fedprox", "scaffold"]),
        (["fedavg", "all"], ["fedavg", "fedprox", "scaffold"]),
        (["scaffold", "all"], ["scaffold", "fedavg", "fedprox"]),
        (["fedprox", "all", "fedavg"], ["fedprox", "scaffold", "fedavg"]),
    ],
)
def test_all_methods_stand_where_all_is_named(
    named: list[str], planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: dcfl.METHODS[name] for name in ("fedavg", "fedprox", "scaffold")}
    monkeypatch.setattr("dcfl.comparisons.contenders.METHODS", known)
    tiny = {"data.train_images": 200, "data.test_images": 50, "data.clients": 4}
    plan = plan_comparison(load_experiment(None, **tiny), named, [0])
    assert [one.experiment.method.name for one in plan.contenders] == planned


def test_all_methods_by_the_command(cli: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: dcfl.METHODS[name] for name in ("fedavg", "fedrep", "fedlc")}
    monkeypatch.setattr("dcfl.comparisons.contenders.METHODS", known)
    words = ["data.train_images=200", "data.test_images=50", "data.clients=4"]
    words += ["federation.rounds=1", "training.epochs=1", "engine.workers=1"]
    code, out, err = cli("compare", *words, "--methods", "all", "--parallel", "1", "--json")
    assert code == 0
    assert [row["method"] for row in json.loads(out)["methods"]] == ["fedavg", "fedlc"]
    assert err.count("left out: fedrep: training.epochs = 1") == 1
