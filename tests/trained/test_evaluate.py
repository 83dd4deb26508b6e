"""A trained model on its own test images, on other data sets, and client by client."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dcfl
from dcfl.data import Dataset, Images, load_dataset
from dcfl.data.settings import DataSettings
from dcfl.errors import ConfigError, DatasetCorrupt, DatasetMissing, RunFolderError, RunMissing
from dcfl.models import FeatureModel
from dcfl.report.evaluation_section import client_table
from dcfl.runs.evaluations import read_evaluation, read_evaluations, write_evaluation
from dcfl.runs.folder import RecordedRun
from dcfl.runs.prepare import prepare
from dcfl.scores import wilson
from dcfl.trained import evaluate as trained_evaluate
from dcfl.trained.evaluate import evaluation_of
from dcfl.trained.subject import load_own_data
from tests.command_line import Call
from tests.trained.picture_runs import coloured, picture_folder, trained_on

SHORT: dict[str, Any] = {"data.clients": 4, "federation.rounds": 2, "training.epochs": 1}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluate") / "digits"
    return dcfl.run(method="fedavg", out=out, **SHORT).folder


def write_digits(
    folder: Path, images: Images, names: tuple[str, ...] = tuple("0123456789")
) -> Path:
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels[..., 0].numpy())
        picture.save(folder / names[label] / f"{number:04d}.png")
    return folder


def write_npz(path: Path, data: Dataset, **more: Any) -> Path:
    np.savez(
        path,
        train_images=data.train.pixels[:20].numpy(),
        train_labels=data.train.labels[:20].numpy(),
        test_images=data.test.pixels.numpy(),
        test_labels=data.test.labels.numpy(),
        **more,
    )
    return path


def test_own_test_images_have_the_accuracy_that_the_run_recorded(digits: Path) -> None:
    scores, summary = dcfl.evaluate(digits), RecordedRun.open(digits).summary
    assert summary is not None
    assert scores.accuracy == pytest.approx(summary.final_accuracy)
    assert scores.images == 355


def test_images_that_a_run_kept_back(tmp_path: Path) -> None:
    settings = {**SHORT, "data.holdout": 0.1}
    result = dcfl.run(method="fedavg", out=tmp_path / "run", **settings)
    record = evaluation_of(result.folder)
    assert record.kind == "kept-back training images"
    assert record.scores.accuracy == pytest.approx(result.summary.final_accuracy)


def test_the_same_images_from_elsewhere_have_the_same_scores(digits: Path, tmp_path: Path) -> None:
    """As a folder, as an .npz file, and as a value; in any order of images and classes."""
    own, data = dcfl.evaluate(digits), load_dataset(DataSettings())
    folder = write_digits(tmp_path / "pictures", data.test)
    assert dcfl.evaluate(digits, folder) == own
    assert dcfl.evaluate(digits, f"folder:{folder}") == own
    parted = write_digits(tmp_path / "parted" / "test", data.test)
    write_digits(parted.parent / "train", data.train[:40])
    assert dcfl.evaluate(digits, parted.parent) == own
    assert dcfl.evaluate(digits, write_npz(tmp_path / "images.npz", data)) == own
    mirrored = Dataset(
        "mirrored",
        data.train,
        Images(data.test.pixels.flip(0), 9 - data.test.labels.flip(0)),
        tuple("9876543210"),
        data.preparation,
    )
    assert dcfl.evaluate(digits, mirrored) == own


def test_parts_of_a_test_set_add_up_to_it(digits: Path, tmp_path: Path) -> None:
    test = load_dataset(DataSettings()).test
    north = write_digits(tmp_path / "sites" / "north", test[:200])
    south = write_digits(tmp_path / "sites" / "south", test[200:])
    own = dcfl.evaluate(digits)
    assert dcfl.evaluate(digits, north) + dcfl.evaluate(digits, south) == own
    record = evaluation_of(digits, f"sites:{tmp_path / 'sites'}", clients=True)
    assert record.scores == own
    assert [(client.name, client.images) for client in record.clients] == [
        ("north", 200),
        ("south", 155),
    ]


def test_classes_may_be_missing_and_are_named(digits: Path, tmp_path: Path) -> None:
    test = load_dataset(DataSettings()).test
    folder = write_digits(tmp_path / "few", test[test.labels < 3])
    record = evaluation_of(digits, folder)
    assert record.absent == list("3456789")
    assert record.scores.recall.isnan().sum() == 7
    assert record.scores.balanced_accuracy == pytest.approx(record.scores.recall[:3].mean().item())


def test_what_does_not_fit_is_refused_in_one_line(digits: Path, tmp_path: Path) -> None:
    data = load_dataset(DataSettings())
    names = tuple("abcdefghij")
    other = write_digits(tmp_path / "letters", data.test[:30], names)
    with pytest.raises(ConfigError, match=r"know: a, b, c, d, e and 5 more; it knows 0, 1,"):
        dcfl.evaluate(digits, other)
    with pytest.raises(ConfigError, match="does not know"):
        dcfl.evaluate(digits, write_npz(tmp_path / "x.npz", data, class_names=np.array(names)))
    larger = torch.zeros(4, 16, 16, 1, dtype=torch.uint8)
    images = Images(larger, torch.arange(4))
    large = Dataset("large", images, images, tuple("0123"), data.preparation)
    with pytest.raises(ConfigError, match="16x16 pixels in 1 channel, and the model was trained"):
        dcfl.evaluate(digits, large)
    with pytest.raises(DatasetMissing, match="no such folder"):
        dcfl.evaluate(digits, "sites:nowhere")
    with pytest.raises(ConfigError, match="unknown data set 'nowhere'"):
        dcfl.evaluate(digits, "nowhere")
    (tmp_path / "empty" / "0").mkdir(parents=True)
    with pytest.raises(DatasetCorrupt, match="no picture"):
        dcfl.evaluate(digits, tmp_path / "empty")
    plain = write_digits(tmp_path / "plain", data.test[:20])
    with pytest.raises(ConfigError, match="has no clients"):
        evaluation_of(digits, plain, clients=True)
    with pytest.raises(RunMissing, match="not a run folder"):
        dcfl.evaluate(tmp_path)


def test_clients_without_test_images_are_scored_on_their_mix(digits: Path) -> None:
    """The number that the run itself has of them."""
    record, summary = evaluation_of(digits, clients=True), RecordedRun.open(digits).summary
    assert record.clients_kind == "test images in its own mix of classes"
    assert [(client.images, client.interval) for client in record.clients] == [(0, None)] * 4
    assert summary is not None
    assert record.fairness.mean == pytest.approx(summary.client_accuracy)
    assert record.fairness.worst_tenth == pytest.approx(summary.worst_decile_accuracy)


def test_clients_without_images_of_their_own_have_no_empty_columns(digits: Path) -> None:
    record = evaluation_of(digits, clients=True)
    assert client_table(record).columns == ["Client", "Accuracy, %"]
    assert {len(row) for row in client_table(record).rows} == {2}


def test_what_no_round_was_scored_on(tmp_path: Path, cli: Call) -> None:
    """The best model is chosen by kept-back images; --test scores it on the others."""
    folder = picture_folder(tmp_path / "pictures")
    data = {"dataset": f"folder:{folder}", "image_size": 24, "holdout": 0.3}
    run = dcfl.run(
        data=data, federation={"rounds": 1}, output={"keep_best": True}, out=tmp_path / "run"
    )
    code, out, err = cli("evaluate", str(run.folder), "--best", "--test", "--json")
    assert code == 0, err
    found = json.loads(out)
    test = load_dataset(DataSettings(dataset=data["dataset"], image_size=24)).test
    assert found["images"] == len(test)
    assert found["trained_on"] == 0
    kept_back = evaluation_of(run.folder, which="best")
    assert kept_back.kind == "kept-back training images"
    assert len(read_evaluations(run.folder)) == 1
    refused = cli("evaluate", str(run.folder), str(folder), "--test")
    assert refused[0]
    assert "--test scores one run" in refused[2]


def test_without_holdout_the_test_images_are_the_rounds(digits: Path, cli: Call) -> None:
    code, _, err = cli("evaluate", str(digits), "--test")
    assert code
    assert "leave out --test" in err


def test_sites_are_scored_on_the_images_that_each_kept_back(tmp_path: Path) -> None:
    train = load_dataset(DataSettings()).train
    for site, images in (("east", train[:200]), ("west", train[200:500])):
        write_digits(tmp_path / "sites" / site, images)
    dataset = f"sites:{tmp_path / 'sites'}"
    settings = {**SHORT, "data.dataset": dataset, "data.image_size": 8, "data.clients": 2}
    result = dcfl.run(method="fedavg", out=tmp_path / "run", **settings)
    record = evaluation_of(result.folder, clients=True)
    assert record.clients_kind == "its own test images"
    assert [client.name for client in record.clients] == ["east", "west"]
    assert sum(client.images for client in record.clients) == record.scores.images
    for client in record.clients:
        assert client.interval == wilson(client.accuracy * client.images / 100, client.images)
    shown = client_table(record).rows
    assert shown[0][3] == "{:.2f} to {:.2f}".format(*(record.clients[0].interval or ()))
    right = sum(client.accuracy * client.images for client in record.clients)
    assert right / record.scores.images == pytest.approx(record.scores.accuracy)


def test_a_broken_picture_of_a_site_is_told_once(tmp_path: Path) -> None:
    train = load_dataset(DataSettings()).train
    for site, images in (("east", train[:100]), ("west", train[100:200])):
        write_digits(tmp_path / "sites" / site, images)
    (tmp_path / "sites" / "west" / "3" / "half.png").write_bytes(b"no picture")
    data = {"dataset": f"sites:{tmp_path / 'sites'}", "image_size": 8, "broken": "skip"}
    with pytest.warns(UserWarning, match="skipped 1 broken image"):
        result = dcfl.run(data=data, federation={"rounds": 1}, out=tmp_path / "run")
    with pytest.warns(UserWarning, match="skipped 1 broken image") as told:
        evaluation_of(result.folder, clients=True)
    assert len(told) == 1


def test_a_site_that_is_left_out_shifts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is whose pictures all fell to training."""
    train = load_dataset(DataSettings()).train
    zeros, ones = train[train.labels == 0], train[train.labels == 1]
    for site, images in (("north", ones[60:]), ("east", zeros[:60]), ("west", ones[:60])):
        write_digits(tmp_path / "sites" / site, images)
    dataset = f"sites:{tmp_path / 'sites'}"
    settings = {**SHORT, "data.dataset": dataset, "data.image_size": 8, "data.clients": 3}
    folder = dcfl.run(method="fedavg", out=tmp_path / "run", **settings).folder

    def without_east(run: RecordedRun, model: FeatureModel) -> Dataset:
        data = load_own_data(run, model)
        assert data.test.owners is not None
        return replace(data, test=data.test[data.test.owners != data.site_names.index("east")])

    monkeypatch.setattr(trained_evaluate, "load_own_data", without_east)
    record = evaluation_of(folder, fine_tune=1)
    assert [client.name for client in record.clients] == ["north", "west"]
    for client in record.clients:
        assert client.accuracy == pytest.approx(float(record.scores.recall[1]))
        assert client.fine_tuned_accuracy == 100  # on its own images, which are of one class


def test_a_record_survives_its_file(digits: Path, tmp_path: Path) -> None:
    for data in (
        None,
        write_digits(tmp_path / "birds, and more", load_dataset(DataSettings()).test[:50]),
    ):
        record = evaluation_of(digits, data, clients=data is None)
        path = write_evaluation(tmp_path, record)
        assert read_evaluation(path) == record
        assert write_evaluation(tmp_path, record) == path
    names = [path.name for path in sorted(tmp_path.glob("evaluation*"))]
    assert names[0].startswith("evaluation-birds-and-more-")
    assert names[1:] == ["evaluation.json"]
    assert [record.own_data for record in read_evaluations(tmp_path)] == [True, False]


@pytest.mark.parametrize(
    "change",
    [
        {"counts": {}},
        {"classes": []},
        {"classes": [{"name": "a"}] * 20_000},
        {"which": "first"},
        {"counts": {"confusion": [[1.0]]}},
        {"counts": {"odds_of_own": [[[5000, 1]]]}},
        {"counts": {"total_loss": -1.0}},
    ],
)
def test_damaged_files_are_named(change: dict[str, Any], digits: Path, tmp_path: Path) -> None:
    stored = evaluation_of(digits).to_json()
    for key, value in change.items():
        changed = {**stored[key], **value} if isinstance(value, dict) and value else value
        stored[key] = changed
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(RunFolderError, match=r"evaluation\.json is damaged"):
        read_evaluation(path)


def test_a_run_that_has_diverged(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_finite(
        model: object, images: Images, *_: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(0), torch.full((len(images), 10), torch.nan)

    monkeypatch.setattr("dcfl.trained.evaluate.embed", nothing_finite)
    with pytest.raises(RunFolderError, match="has diverged"):
        dcfl.evaluate(digits)


def test_the_command_prints_writes_and_shows(digits: Path, cli: Call) -> None:
    code, said, _ = cli("evaluate", digits, "--clients")
    assert code == 0
    for word in (
        "355 test images of digits",
        "macro F1",
        "AUC",
        "% the worst; each",
        "precision %",
    ):
        assert word in said
    page = (digits / "report.html").read_text()
    assert "Which class is taken for which" in page
    assert "Is it as right as it is sure?" in page
    code, said, _ = cli("evaluate", digits, "--json")
    assert code == 0
    found = json.loads(said)
    assert found == json.loads((digits / "evaluation.json").read_text())
    assert found["images"] == 355
    assert len(found["classes"]) == 10


def test_the_command_refuses_other_classes_with_exit_code_2(
    digits: Path, tmp_path: Path, cli: Call
) -> None:
    other = write_digits(
        tmp_path / "letters", load_dataset(DataSettings()).test[:30], tuple("abcdefghij")
    )
    code, _, said = cli("evaluate", digits, other)
    assert code == 2
    assert said.startswith("dcfl: folder:")
    assert said.count("\n") == 1
    assert not list(digits.glob("evaluation-*"))


def test_test_images_that_have_changed_are_refused(tmp_path: Path, cli: Call) -> None:
    """Mean and deviation come from the training images, so the content is what gives it away."""
    pictures = picture_folder(tmp_path / "pictures")
    run = trained_on(pictures, tmp_path / "run").folder
    assert cli("evaluate", run)[0] == 0
    rng = np.random.default_rng(7)
    coloured("red", rng, (24, 24)).save(pictures / "test" / "red" / "m.png")
    code, _, err = cli("evaluate", run)
    assert code == 2
    assert "are not those that the run was trained and scored on" in err
    assert err.count("\n") == 1
    assert cli("evaluate", run, pictures / "test")[0] == 0


def test_fine_tuning_is_the_local_loop_from_the_same_model_for_each_client(digits: Path) -> None:
    """Against torch's own SGD on one client, and better than the global model on its mix."""
    record = evaluation_of(digits, fine_tune=2)
    assert record.fine_tuned == 2
    assert len(record.clients) == 4
    before, after = record.fairness.mean, record.fine_tuned_fairness.mean
    assert before is not None
    assert after is not None
    assert after > before
    again = evaluation_of(digits, fine_tune=2)
    assert [one.fine_tuned_accuracy for one in again.clients] == [
        one.fine_tuned_accuracy for one in record.clients
    ]
    expected = _tuned_by_hand(digits, client=3, epochs=2)
    assert record.clients[3].fine_tuned_accuracy == pytest.approx(expected, abs=1.0)


def _tuned_by_hand(folder: Path, client: int, epochs: int) -> float:
    run = RecordedRun.open(folder)
    prepared = prepare(run.experiment)
    model = dcfl.load_model(folder).requires_grad_(True).train()
    training, data = run.experiment.training, prepared.data
    optimizer = torch.optim.SGD(
        model.parameters(),
        training.lr * training.lr_decay**2,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    batches = data.client(client).training_batches(epochs, training.batch_size, 0, 3, client, False)
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch.images).logits, batch.labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        optimizer.step()
    by_class = dcfl.evaluation.score_model(model, data.dataset).by_class
    return float((data.label_mixes()[client] * by_class).sum())


def test_a_written_evaluation_says_how_long_was_fine_tuned(digits: Path, cli: Call) -> None:
    code, printed, _ = cli("evaluate", digits, "--fine-tune", 1)
    assert code == 0
    assert "fine-tuned" in printed
    record = read_evaluation(digits / "evaluation.json")
    assert record.fine_tuned == 1
    assert record.fine_tuned_fairness.mean is not None
    assert "mean after 1 epoch of training on its images" in (digits / "report.html").read_text()
    (digits / "evaluation.json").unlink()


def test_fine_tuning_says_what_it_leaves_frozen(tmp_path: Path, cli: Call) -> None:
    frozen = {**SHORT, "model.freeze": ["classifier"], "federation.rounds": 1}
    folder = dcfl.run(method="fedavg", out=tmp_path / "run", **frozen).folder
    remark = "fine-tuning left classifier frozen, as the run did: --parts all, or naming them"
    assert remark in cli("evaluate", folder, "--fine-tune", 1)[1]
    assert remark in (folder / "report.html").read_text()
    assert read_evaluation(folder / "evaluation.json").frozen == ("classifier",)
    assert remark not in cli("evaluate", folder, "--fine-tune", 1, "--parts", "all")[1]
    assert remark not in cli("evaluate", folder)[1]


def test_fine_tuning_needs_the_clients_images(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fine-tuning needs the clients' images"):
        evaluation_of(digits, tmp_path, fine_tune=1)


def test_a_clients_own_model_is_evaluated_and_exported(tmp_path: Path, cli: Call) -> None:
    settings = {**SHORT, "federation.personal": ["classifier"], "federation.participation": 1.0}
    folder = dcfl.run(method="fedavg", out=tmp_path / "run", **settings).folder
    assert "models of their own" in (folder / "report.html").read_text()
    code, printed, _ = cli("evaluate", folder, "--client", 2)
    assert code == 0
    assert "client 2's own model on 355 test images" in printed
    record = read_evaluation(folder / "evaluation-client-2.json")
    assert record.which == 2
    (kept,) = [row for row in RecordedRun.open(folder).personal if row.client == 2]
    (own,) = record.clients
    assert own.name == "client 2"
    assert own.accuracy == pytest.approx(kept.personal_accuracy)
    assert f"{own.accuracy:.2f} % on test images in its own mix of classes" in printed
    tuned = evaluation_of(folder, which=2, fine_tune=1)
    assert [client.name for client in tuned.clients] == ["client 2"]
    assert tuned.clients[0].fine_tuned_accuracy is not None
    assert len(evaluation_of(folder, which=2, clients=True).clients) == 4
    assert record.scores == dcfl.evaluate(folder, which=2) != dcfl.evaluate(folder)
    out = tmp_path / "client.safetensors"
    words = ("export", folder, "--format", "safetensors", "--client", 2, "--out", out)
    assert cli(*words)[0] == 0
    card = (tmp_path / "README.md").read_text()
    assert "client 2's own model" in card
    assert f"{kept.personal_accuracy:.2f} % | test images in its own mix of classes" in card
    assert "summary.json" not in card
    assert cli(*words[:-2])[0] == 0
    assert (folder / "export-safetensors-client-2" / "model.safetensors").is_file()
    assert "without the clients' personal parts; --client K" in cli("evaluate", folder)[2]
    assert cli("evaluate", folder, "--client", 2, "--best")[0] == 2
    code, _, err = cli("evaluate", folder, "--client", 9)
    assert code == 2
    assert "client 9 has no personal model; these have one: 0, 1, 2, 3" in err
