"""Each client alone, all data in one place, the most frequent class: beside the methods."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import dcfl
from dcfl.comparisons.baselines import baselines_for
from dcfl.comparisons.comparison import Comparison
from dcfl.comparisons.groups import fine_tuned
from dcfl.config import load_experiment
from dcfl.errors import (
    ConfigError,
    DatasetCorrupt,
    DatasetMissing,
    PartitionError,
    RunFolderError,
    SettingsWarning,
)
from dcfl.report import write_report
from dcfl.report.comparison_section import csv_text
from dcfl.runs.evaluations import read_evaluation
from dcfl.runs.folder import RecordedRun
from dcfl.runs.prepare import prepare
from tests.command_line import Call
from tests.data.scanners import scanners

TINY = {
    "data.clients": 4,
    "data.train_images": 200,
    "data.test_images": 100,
    "federation.participation": 0.5,
    "federation.rounds": 4,
    "training.epochs": 1,
}
NAMES = [
    "each client alone",
    "all data in one place",
    "fedavg, fine-tuned",
    "the most frequent class",
]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("baselines") / "runs"
    methods = ["fedavg", "fedprox(mu=1)"]
    return dcfl.compare(methods=methods, out=out, parallel=1, baselines=True, **TINY)


def test_baselines_are_rows_of_their_own_that_are_not_compared(compared: Comparison) -> None:
    assert [group.label for group in compared.groups] == ["fedavg", "fedprox"]
    assert [group.label for group in compared.baselines] == [f"baseline: {one}" for one in NAMES]
    found = compared.standing.to_json()
    assert [row["method"] for row in found["methods"]] == ["fedavg", "fedprox"]
    assert [pair["method"] for pair in found["pairs"]] == ["fedprox"]
    assert [row["baseline"] for row in found["baselines"]] == [
        "alone",
        "pooled",
        "fine-tuned",
        "most frequent",
    ]
    page = compared.report.read_text("utf-8")
    assert all(f"baseline: {one}" in page for one in NAMES)
    assert csv_text(compared.standing).count("baseline: ") == 4


def test_a_later_report_of_the_folder_has_them_too(compared: Comparison, tmp_path: Path) -> None:
    page = write_report(compared.folder, out=tmp_path / "page.html")
    assert all(f"baseline: {one}" in page.read_text("utf-8") for one in NAMES)


def test_the_folder_is_continued_with_and_without_them(compared: Comparison) -> None:
    again = dcfl.compare(methods=["fedavg"], out=compared.folder, parallel=1, **TINY)
    assert len(again.baselines) == 4
    more = {**TINY, "federation.rounds": 5}
    with pytest.raises(dcfl.errors.RunFolderError, match=r"federation\.rounds was 4"):
        dcfl.compare(methods=["moon"], out=compared.folder, **more)


def test_alone_has_the_clients_own_numbers_and_no_others(compared: Comparison) -> None:
    alone, pooled, _, constant = compared.baselines
    (run,) = alone.runs
    own = [row.personal_accuracy for row in run.personal]
    assert None not in own
    assert len(own) == 4
    assert alone.spread("own_accuracy").mean == pytest.approx(sum(map(float, own)) / 4)  # type: ignore[arg-type]
    assert alone.spread("worst_decile_accuracy").mean == pytest.approx(min(map(float, own)))  # type: ignore[arg-type]
    for missing in ("max_accuracy", "ema_accuracy", "final_accuracy", "bytes_up"):
        assert alone.spread(missing).mean != alone.spread(missing).mean
    assert pooled.spread("final_accuracy").mean > 0
    assert constant.curve == alone.curve == []


def test_fine_tuning_for_comparison_and_for_oneself_are_two(
    compared: Comparison, tmp_path: Path, cli: Call
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(compared.groups[0].runs[0].folder, folder)
    baseline = fine_tuned(RecordedRun.open(folder))
    assert baseline is not None
    assert baseline.fine_tuned == 5
    assert cli("evaluate", folder, "--fine-tune", 1, "--parts", "classifier")[0] == 0
    assert fine_tuned(RecordedRun.open(folder)) == baseline
    assert read_evaluation(folder / "evaluation.json").fine_tuned == 1
    page = (folder / "report.html").read_text("utf-8")
    assert "mean after 1 epoch of training" in page
    assert "mean after 5 epochs of training" not in page  # the numbers before it are the same
    (folder / "evaluation-fine-tuned.json").unlink()
    assert fine_tuned(RecordedRun.open(folder)) is None


def test_a_run_that_is_made_longer_is_fine_tuned_anew(compared: Comparison, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(compared.groups[0].runs[0].folder, folder)
    assert fine_tuned(RecordedRun.open(folder)) is not None
    dcfl.resume(folder, rounds=5)
    assert fine_tuned(RecordedRun.open(folder)) is None


@pytest.mark.parametrize(
    "kind", [ConfigError, RunFolderError, DatasetMissing, DatasetCorrupt, PartitionError]
)
def test_what_cannot_be_fine_tuned_ends_no_comparison(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise kind("its images have gone")

    monkeypatch.setattr("dcfl.trained.evaluate.evaluation_of", refuse)
    short = {**TINY, "federation.rounds": 1}
    with pytest.warns(SettingsWarning, match="is not fine-tuned: its images have gone"):
        found = dcfl.compare(
            methods=["fedavg"], out=tmp_path / "runs", parallel=1, baselines=True, **short
        )
    assert found.report.is_file()
    assert "baseline: fedavg, fine-tuned" not in [one.label for one in found.baselines]


def test_the_most_frequent_class_by_hand(compared: Comparison) -> None:
    run = compared.groups[0].runs[0]
    counts, labels = torch.from_numpy(run.partition_counts), run.test_images.labels
    share = float((labels == counts.sum(dim=0).argmax()).double().mean())
    constant = compared.baselines[-1]
    assert constant.spread("final_accuracy").mean == pytest.approx(100 * share)
    mixes = counts.double() / counts.sum(dim=1, keepdim=True)
    own = 100 * mixes.max(dim=1).values  # all classes are among the test images
    assert constant.spread("own_accuracy").mean == pytest.approx(float(own.mean()))
    assert constant.spread("worst_decile_accuracy").mean == pytest.approx(float(own.min()))


def test_baselines_make_as_many_passes_whatever_else_is_set() -> None:
    settings = {**TINY, "federation.rounds": 8, "training.lr_decay": 0.9, "privacy.clip": 1.0}
    experiment = load_experiment(None, **settings, **{"privacy.noise": 1.0, "attack.kind": "noise"})
    alone, pooled = baselines_for(experiment).values()
    assert (alone.federation.rounds, alone.federation.participation) == (4, 1.0)
    assert (pooled.federation.rounds, pooled.federation.participation) == (4, 0.25)
    assert alone.training.lr_in(5) == pytest.approx(experiment.training.lr_in(9))
    assert not alone.privacy.active
    assert pooled.attack.kind == "none"
    whole = baselines_for(load_experiment(experiment, **{"federation.participation": 1.0}))
    assert whole["alone"].training == experiment.training


def test_all_images_are_in_one_place() -> None:
    experiment = load_experiment(
        None, **TINY, **{"method.name": "fedavg", "federation.baseline": "pooled"}
    )
    prepared = prepare(experiment)
    assert prepared.cohort == 1
    labels = prepared.data.client(0).images.labels
    assert sorted(labels.tolist()) == sorted(prepared.data.dataset.train.labels.tolist())
    assert prepared.data.sizes.tolist() == [200] * 4
    assert len(prepared.data.label_mixes()) == 4  # the clients are judged one by one


def test_alone_is_a_clients_own_training_and_nothing_else(tmp_path: Path) -> None:
    settings = {**TINY, "method.name": "fedavg", "federation.participation": 1.0}
    keeps = {"output.keep_every": 1, "output.keep_updates": True}
    shared = dcfl.run(out=tmp_path / "shared", **settings, **keeps)
    alone = dcfl.run(
        out=tmp_path / "alone", **settings, **keeps, **{"federation.baseline": "alone"}
    )

    def sent(folder: Path, round: int) -> dict[str, torch.Tensor]:
        return load_file(folder / f"round-{round:06}-client-000002.safetensors")

    def same(one: Callable[[Path], dict[str, torch.Tensor]]) -> bool:
        mine, theirs = one(alone.folder), one(shared.folder)
        return all(torch.equal(mine[name], theirs[name]) for name in theirs)

    assert same(lambda folder: sent(folder, 1))
    assert not same(lambda folder: sent(folder, 2))  # it goes on from its own weights
    kept = load_file(alone.folder / "personal" / "client-000002.safetensors")
    last = sent(alone.folder, 4)
    assert all(torch.equal(last[f"weights/{name}"], tensor) for name, tensor in kept.items())
    initial = prepare(load_experiment(None, **settings)).model
    for name, before in initial.named_parameters():
        assert torch.equal(alone.weights[name], before), name


def test_sites_are_judged_on_their_own_pictures(tmp_path: Path) -> None:
    settings = {
        "data.dataset": f"sites:{scanners(tmp_path / 'sites')}",
        "data.image_size": 8,
        "federation.rounds": 2,
        "training.epochs": 1,
    }
    out = tmp_path / "runs"
    compared = dcfl.compare(methods=["fedavg"], out=out, parallel=1, baselines=True, **settings)
    alone, pooled, _, constant = compared.baselines
    assert alone.label == "baseline: each site alone"
    (run,) = alone.runs
    assert all(row.on_sites[row.client] == row.personal_accuracy for row in run.personal)
    assert len(pooled.runs[0].rounds[-1].sites) == 3
    summary = RecordedRun.open(out / "fedavg-seed0").summary
    assert summary is not None
    assert summary.own_images
    sizes = prepare(load_experiment(None, **settings)).data.dataset.cell_sizes.double()
    answers = torch.from_numpy(run.partition_counts).argmax(dim=1)
    own = 100 * sizes[range(3), answers] / sizes.sum(dim=1)
    assert constant.spread("own_accuracy").mean == pytest.approx(float(own.mean()))
    with pytest.raises(ConfigError, match=r"data\.clients = 1: the data comes as 3 sites"):
        dcfl.run(**settings, **{"data.clients": 1})


@pytest.mark.parametrize(
    "settings",
    [
        {"method.name": "moon"},
        {"method.name": "fedavg", "federation.personal": ["norms"]},
        {"method.name": "fedavg", "engine.name": "flower", "data.dataset": "remote"},
    ],
    ids=json.dumps,
)
def test_what_is_no_baseline_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r'federation\.baseline = "pooled"'):
        load_experiment(None, **settings, **{"federation.baseline": "pooled"})
