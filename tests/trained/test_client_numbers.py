"""A client with test images of its own is judged on those, and every number of it is the same
wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dcfl
from dcfl.cli.cards import run_card
from dcfl.data import DataSettings, load_dataset
from dcfl.data.catalogue import load_own_site
from dcfl.report import write_report
from dcfl.report.client_sections import final_accuracies, personal_section
from dcfl.runs.evaluations import EvaluationRecord
from dcfl.runs.folder import RecordedRun
from dcfl.runs.progress import RoundStatus
from dcfl.scores import wilson
from dcfl.trained.evaluate import evaluation_of
from tests.command_line import Call

SITES = ("east", "north", "west")
SETTINGS: dict[str, Any] = {
    "data.image_size": 8,
    "data.flip": False,
    "data.crop": 0,
    "federation.rounds": 6,
    "federation.participation": 1.0,
    "training.epochs": 3,
    "training.batch_size": 10,
    "training.lr": 0.05,
    "model.width": 8,
}


def scan(scanner: int, lesion: bool, rng: np.random.Generator) -> np.ndarray:
    """Bright on the left or on the right. Scanners differ in brightness and contrast, and one shows
    a negative."""
    signal = np.zeros((8, 8))
    signal[:, (slice(0, 4) if lesion else slice(4, 8))] = 1.0
    light = (60 + 40 * signal, 180 - 60 * signal, 110 + 20 * signal)[scanner]
    return np.clip(light + rng.normal(0, 8, (8, 8)), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites with a scanner each, of different sizes."""
    folder, rng = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)
    for scanner, site in enumerate(SITES):
        for shade in ("healthy", "lesion"):
            (folder / site / shade).mkdir(parents=True)
            for number in range(20 + 15 * scanner):
                picture = Image.fromarray(scan(scanner, shade == "lesion", rng)).convert("RGB")
                picture.save(folder / site / shade / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def trained(scans: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RecordedRun]:
    def train(name: str, **settings: Any) -> RecordedRun:
        out = tmp_path_factory.mktemp("runs") / name
        all_settings = {**SETTINGS, "data.dataset": f"sites:{scans}", **settings}
        return RecordedRun.open(dcfl.run(method="fedavg", out=out, **all_settings).folder)

    return train


@pytest.fixture(scope="module")
def fedavg(trained: Callable[..., RecordedRun]) -> RecordedRun:
    return trained("fedavg")


@pytest.fixture(scope="module")
def fedbn(trained: Callable[..., RecordedRun]) -> RecordedRun:
    return trained("fedbn", **{"federation.personal": ["norms"]})


def right(run: RecordedRun, which: Any, scans: Path) -> list[float]:
    """Percent of each site's own test pictures, by hand: read site by site."""
    found = []
    for number, site in enumerate(SITES):
        model = dcfl.load_model(run.folder, number if which == "own" else which)
        assert model.preparation is not None
        settings = DataSettings(dataset=f"folder:{scans / site}", image_size=8)
        tests = load_dataset(settings).test
        answers = model(model.preparation.clean(tests.pixels)).logits.argmax(dim=1)
        found.append(100 * float((answers == tests.labels).double().mean()))
    return found


def test_the_global_model_is_scored_at_each_site_on_its_own_pictures(
    fedavg: RecordedRun, scans: Path
) -> None:
    wanted = right(fedavg, "last", scans)
    last, summary = fedavg.rounds[-1], fedavg.summary
    assert summary is not None
    assert [site.accuracy for site in last.sites] == pytest.approx(wanted)
    assert [site.images for site in last.sites] == [8, 14, 20]
    assert summary.own_images
    assert summary.client_accuracy == pytest.approx(np.mean(wanted))
    assert summary.worst_decile_accuracy == pytest.approx(min(wanted))
    rows = [row for row in fedavg.clients if row.round == last.round]
    assert [row.own_accuracy for row in rows] == pytest.approx(wanted)
    assert list(final_accuracies(fedavg).values()) == pytest.approx(wanted)  # the clients' chart
    record = evaluation_of(fedavg.folder, clients=True)
    assert [client.accuracy for client in record.clients] == pytest.approx(wanted)
    sizes = np.array([site.images for site in last.sites])
    assert last.accuracy == pytest.approx(float(np.dot(wanted, sizes) / sizes.sum()))


def test_personal_models_are_above_the_common_one_wherever_a_number_is_shown(
    fedavg: RecordedRun, fedbn: RecordedRun, scans: Path
) -> None:
    common, own = right(fedavg, "last", scans), right(fedbn, "own", scans)
    assert np.mean(own) > np.mean(common) + 5
    summary = fedbn.summary
    assert summary is not None
    assert [row.personal_accuracy for row in fedbn.personal] == pytest.approx(own)
    assert summary.personal_accuracy == pytest.approx(np.mean(own))
    assert summary.worst_decile_personal_accuracy == pytest.approx(min(own))
    assert summary.judged_accuracy == summary.personal_accuracy
    shown = f"{np.mean(own):.2f} % on average, each on its own test images; {min(own):.2f} % the"
    result = dcfl.Result(fedbn.folder, summary, {}, fedbn.model())
    for text in (run_card(summary, fedbn.rounds, "here", fedbn.folder), str(result)):
        leading, common = text.index(shown), text.index(f"accuracy {summary.final_accuracy:.2f} %")
        assert leading < common
        assert "global" in text[leading:common]
    html = result._repr_html_()
    assert html.index(f"{np.mean(own):.2f} %") < html.index(f"{summary.final_accuracy:.2f} %")
    line, _ = RoundStatus(fedbn.experiment).after(fedbn.rounds[0])
    assert line.startswith("the global model's accuracy ")
    write_report(fedbn.folder)
    page = (fedbn.folder / "report.html").read_text()
    assert "each on its own test images" in page
    assert "mix of classes, averaged" not in page
    for number, site in enumerate(SITES):
        record: EvaluationRecord = evaluation_of(fedbn.folder, which=number)
        assert record.scores.accuracy == pytest.approx(own[number])
        assert record.images == (8, 14, 20)[number] == record.scores.confusion.sum()
        assert record.interval == wilson(float(record.scores.confusion.trace()), record.images)
        assert not record.clients
        everywhere = evaluation_of(fedbn.folder, which=number, clients=True)
        assert everywhere.scores == record.scores
        assert (everywhere.clients[number].name, len(everywhere.clients)) == (site, 3)


def test_two_runs_at_one_client_are_compared_on_its_own_pictures(
    fedavg: RecordedRun, fedbn: RecordedRun, scans: Path, cli: Call
) -> None:
    """What a hospital decides by: its own model against the one that all share."""
    common, own = right(fedavg, "last", scans), right(fedbn, "own", scans)
    for number, images in enumerate((8, 14, 20)):
        words = ("evaluate", fedavg.folder, fedbn.folder, "--client", number)
        code, out, err = cli(*words, "--json")
        assert code == 0, err
        paired = json.loads(out)["paired"]
        assert paired["images"] == images
        assert paired["difference"] == pytest.approx(own[number] - common[number])
        shown = cli(*words)[1]
        assert f"last model: {common[number]:.2f} %" in shown
        assert f"client {number}'s own model: {own[number]:.2f} %" in shown
        assert f"on {images} own test images of sites:" in shown
        _, out, _ = cli("evaluate", fedbn.folder, fedavg.folder, scans / "north", "--client", 1)
        assert "client 1's own model" in out
    assert cli("evaluate", fedbn.folder, fedbn.folder, "--client", 1, "--best")[0] == 2
    assert "--client K takes that" in cli("evaluate", fedavg.folder, fedbn.folder)[2]
    code, _, err = cli("evaluate", fedavg.folder, fedbn.folder, "--client", 7)
    assert (code, err.count("\n")) == (2, 1)


def test_a_fine_tuned_model_is_scored_on_the_same_pictures(fedavg: RecordedRun) -> None:
    record = evaluation_of(fedavg.folder, fine_tune=3)
    assert record.clients_kind == "its own test images"
    assert (record.fine_tuned_fairness.mean or 0) > (record.fairness.mean or 100)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_score_them_alike(
    workers: int, fedavg: RecordedRun, trained: Callable[..., RecordedRun]
) -> None:
    again = trained(f"workers-{workers}", **{"engine.workers": workers})
    assert [row.sites for row in again.rounds] == [row.sites for row in fedavg.rounds]


def test_a_node_serves_its_own_sites_tests_alone(scans: Path) -> None:
    settings = DataSettings(
        dataset="remote", image_size=8, class_names=("healthy", "lesion"), clients=3
    )
    data, _ = load_own_site(settings, f"sites:{scans}", "north", 1)
    whole = load_dataset(DataSettings(dataset=f"sites:{scans}", image_size=8))
    assert torch.equal(data.test.pixels, whole.test.of(1).pixels)
    assert data.test.owners is None
    assert len(data.test) == 14


def test_clients_without_test_images_are_scored_on_their_mix_and_it_is_said(tmp_path: Path) -> None:
    result = dcfl.run(out=tmp_path / "run", federation={"rounds": 1}, data={"clients": 4})
    run = RecordedRun.open(result.folder)
    assert run.rounds[-1].sites == ()
    assert not result.summary.own_images
    assert run.clients_on == "its own mix of classes"
    assert "its own mix of classes" in (result.folder / "report.html").read_text()


def test_images_in_memory_belong_to_their_sites_too() -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 2
    owners = np.where(np.arange(60) < 20, "b", "a")
    data = dcfl.Dataset.of(images, labels, sites=owners, test=0.2)
    assert data.site_names == ("b", "a")
    assert data.test.owners is not None
    assert data.test.owners.bincount().tolist() == [4, 8]


def test_every_model_on_every_sites_pictures(fedbn: RecordedRun, scans: Path) -> None:
    """By hand, model by model and site by site; the report has the table."""
    rows = fedbn.personal
    assert [row.global_accuracy for row in rows] == pytest.approx(right(fedbn, "last", scans))
    for row in rows:
        assert list(row.on_sites) == pytest.approx(right(fedbn, row.client, scans))
        assert row.on_sites[row.client] == row.personal_accuracy
        assert max(row.on_sites) == row.personal_accuracy > min(row.on_sites)  # a scanner matters
    section = personal_section([fedbn], {fedbn: ""})
    assert section is not None
    table = section.tables[-1]
    assert [row[0] for row in table.rows] == ["global", *SITES]
    assert table.rows[2][1:] == [f"{own:.2f}" for own in rows[1].on_sites]
    write_report(fedbn.folder)
    page = (fedbn.folder / "report.html").read_text()
    assert "every model on every site’s test images" in page
