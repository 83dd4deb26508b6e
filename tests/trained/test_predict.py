"""dcfl predict and dcfl.predict: pictures of any kind, read as training read them."""

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dcfl
import dcfl.cli.main
from dcfl.data import load_dataset
from dcfl.data.readers.pictures import decode_all
from dcfl.errors import ConfigError, DatasetMissing, RunFolderError, RunMissing
from dcfl.trained import predict as picture_files
from dcfl.trained.predict import open_classifier
from tests.analysis.trained import train
from tests.command_line import Call
from tests.data.pictures import save
from tests.trained.picture_runs import CLASSES, coloured, picture_folder, trained_on


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module", params=["resize", "crop"])
def run(
    pictures: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("runs") / request.param
    return trained_on(pictures, folder, **{"data.fit": request.param}).folder


@pytest.fixture(scope="module")
def squeezed(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_on(pictures, tmp_path_factory.mktemp("runs") / "squeezed").folder


def test_pixels_are_those_that_training_read(run: Path, pictures: Path) -> None:
    dataset = load_dataset(dcfl.load_experiment(run / "config.toml").data)
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        paths = [path for name in CLASSES for path in sorted((pictures / part / name).iterdir())]
        pixels, broken = open_classifier(run).pixels(paths)
        assert not broken
        assert torch.equal(pixels, images.pixels)


def test_probabilities_are_those_of_the_evaluated_model(run: Path, pictures: Path) -> None:
    dataset = load_dataset(dcfl.load_experiment(run / "config.toml").data)
    model = dcfl.load_model(run)
    assert model.preparation is not None
    with torch.no_grad():
        wanted = model(model.preparation.clean(dataset.test.pixels)).logits.double().softmax(1)
    names = [path for name in CLASSES for path in sorted((pictures / "test" / name).iterdir())]
    found = list(dcfl.predict(run, names, top=3))
    assert [prediction.picture for prediction in found] == names
    for prediction, row in zip(found, wanted, strict=True):
        got = {candidate.label: candidate.probability for candidate in prediction.ranking}
        assert [got[name] for name in CLASSES] == pytest.approx(row.tolist(), abs=1e-6)
        assert prediction.label == CLASSES[int(row.argmax())]
        assert math.fsum(got.values()) == pytest.approx(1)
        ranked = [candidate.probability for candidate in prediction.ranking]
        assert ranked == sorted(ranked, reverse=True)


def test_class_folders_give_the_accuracy_of_the_run(run: Path, pictures: Path, cli: Call) -> None:
    recorded = json.loads((run / "summary.json").read_text())["final_accuracy"]
    code, out, _ = cli("predict", run, pictures / "test", "--json")
    totals = json.loads(out)["totals"]
    assert code == 0
    assert totals["labelled"] == totals["pictures"] == 39
    assert totals["accuracy"] == pytest.approx(recorded)
    code, out, _ = cli("predict", run, pictures / "test")
    assert f"accuracy  {recorded:.2f} % (" in out
    assert out.count("✓") == totals["right"]


@pytest.mark.parametrize(
    ("place", "trained"), [("", 39), ("train/red", 13), ("test", 0), ("../copy", 13)]
)
def test_an_accuracy_of_training_pictures_is_no_test(
    squeezed: Path, pictures: Path, place: str, trained: int, cli: Call
) -> None:
    """Wherever they lie and whatever their names are."""
    shutil.copytree(pictures / "train" / "red", pictures.parent / "copy/x", dirs_exist_ok=True)
    _, out, _ = cli("predict", squeezed, pictures / place)
    assert (f"It was trained on {trained} of these " in out) == bool(trained)
    _, out, _ = cli("predict", squeezed, pictures / place, "--json")
    found = json.loads(out)
    assert found["totals"]["trained_on"] == trained
    assert sum(row["trained_on"] for row in found["pictures"]) == trained


def test_pictures_come_in_the_order_of_their_names(
    squeezed: Path, tmp_path: Path, cli: Call
) -> None:
    rng = np.random.default_rng(0)
    names = ["a.png", "blue/p1/1.png", "blue/p1/2.png", "blue/p2/1.png", "red/p1/1.png", "z.png"]
    for name in reversed(names):
        save(tmp_path / "pictures" / name, coloured("red", rng))
    assert cli("predict", squeezed, tmp_path / "pictures", "--csv", "rows.csv")[0] == 0
    rows = csv.DictReader(io.StringIO(Path("rows.csv").read_text()))
    found = [Path(row["picture"]).relative_to(tmp_path / "pictures").as_posix() for row in rows]
    assert found == names


def test_a_class_is_known_by_any_folder_on_the_way(squeezed: Path, pictures: Path) -> None:
    found = list(dcfl.predict(squeezed, pictures))  # train/red/..., test/red/...
    assert len(found) == 78
    assert all(prediction.truth == prediction.picture.parent.name for prediction in found)
    assert {found.truth for found in dcfl.predict(squeezed, pictures / "test" / "red")} == {"red"}
    (alone,) = dcfl.predict(squeezed, pictures / "test" / "red" / "a.png")
    assert (alone.truth, alone.right) == (None, None)


def test_bad_pictures_are_named_and_skipped(squeezed: Path, tmp_path: Path, cli: Call) -> None:
    good = save(tmp_path / "good.png", coloured("red", np.random.default_rng(0)))
    (tmp_path / "text.png").write_text("not a picture")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:200])
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe.png")
    save(tmp_path / "floats.tif", Image.fromarray(np.zeros((9, 9), np.float32)))
    code, out, err = cli("predict", squeezed, tmp_path, "--csv", tmp_path / "rows.csv")
    assert code == 2
    bad = ("text.png", "cut.png", "nowhere.png", "pipe.png", "floats.tif")
    assert all(f"{tmp_path / name}: skipped (" in err for name in bad)
    assert "5 of 6 pictures could not be read" in err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text())))
    assert {row["picture"]: bool(row["label"]) for row in rows} == {
        str(tmp_path / name): name == "good.png" for name in (*bad, "good.png")
    }
    code, out, err = cli("predict", squeezed, tmp_path / "text.png")
    assert (code, out) == (2, "")


def test_files_that_the_disk_refuses_are_skipped(
    squeezed: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def refusing(path: Path, *args: object, **kwargs: object) -> object:
        if path.name == "b.jpg":
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    found = list(dcfl.predict(squeezed, pictures / "test" / "red"))
    assert {p.picture.name: p.skipped for p in found if p.skipped} == {"b.jpg": "Permission denied"}


def test_memory_does_not_grow_with_the_pictures(
    squeezed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture_files, "BLOCK", 7)
    together = []

    def watched(paths: list[Path], decoding: object) -> object:
        together.append(len(paths))
        return decode_all(paths, decoding)  # type: ignore[arg-type]

    monkeypatch.setattr(picture_files, "decode_all", watched)
    rng = np.random.default_rng(0)
    for number in range(40):
        save(tmp_path / f"{number}.png", coloured("red", rng, (8, 8)))
    predictions = dcfl.predict(squeezed, tmp_path)
    next(predictions)
    assert together == [7]  # nothing is read ahead
    assert len(list(predictions)) == 39
    assert together == [7] * 5 + [5]


def test_a_model_of_grey_images_takes_colour_pictures(tmp_path: Path) -> None:
    """The built-in digits, saved as pictures and read back: the same pixels."""
    run = dcfl.run(
        out=tmp_path / "run",
        method="fedavg",
        federation={"rounds": 1},
        engine={"workers": 1},
        output={"report": False},
    ).folder
    digits = load_dataset(dcfl.load_experiment(run / "config.toml").data).test.pixels[:20]
    paths = [
        save(
            tmp_path / mode / f"{number}.png", Image.fromarray(pixels[..., 0].numpy()).convert(mode)
        )
        for mode in ("L", "RGB")
        for number, pixels in enumerate(digits)
    ]
    pixels, _ = open_classifier(run).pixels(paths)
    assert torch.equal(pixels, torch.cat([digits, digits]))
    photo = save(tmp_path / "photo.jpg", coloured("red", np.random.default_rng(0), (640, 480)))
    (prediction,) = dcfl.predict(run, photo)
    assert prediction.label in [*"0123456789"]


def test_a_run_with_a_method_of_the_users_own_needs_no_method_file(
    squeezed: Path, pictures: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for file in squeezed.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    text = (copy / "config.toml").read_text().replace('name = "fedavg"', 'name = "mine"')
    (copy / "config.toml").write_text(text)
    assert len(list(dcfl.predict(copy, pictures / "test"))) == 39


def test_mistakes_are_one_line(squeezed: Path, pictures: Path, tmp_path: Path, cli: Call) -> None:
    mistakes: list[tuple[type[Exception], Callable[[], object]]] = [
        (DatasetMissing, lambda: dcfl.predict(squeezed, tmp_path / "nowhere.png")),
        (DatasetMissing, lambda: dcfl.predict(squeezed, tmp_path)),
        (DatasetMissing, lambda: dcfl.predict(squeezed, [])),
        (RunMissing, lambda: dcfl.predict(tmp_path, pictures)),
        (RunMissing, lambda: dcfl.predict(squeezed, pictures, which="best")),
        (ConfigError, lambda: dcfl.predict(squeezed, pictures, which="worst")),  # type: ignore[arg-type]
        (ConfigError, lambda: dcfl.predict(squeezed, pictures, top=0)),
    ]
    for error, call in mistakes:
        with pytest.raises(error):
            call()
    for words in (["nowhere.png"], [tmp_path], [pictures, "--csv", tmp_path / "no" / "a.csv"]):
        code, _, err = cli("predict", squeezed, *words)
        assert code in (2, 3)
        assert err.startswith("dcfl: ")
        assert len(err.splitlines()) == 1


def test_a_model_that_diverged_is_refused(
    squeezed: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(folder: Path, which: Any, **_: Any) -> dcfl.FeatureModel:
        model = dcfl.load_model(folder, which)
        torch.nn.init.constant_(model.classifier.weight, math.nan)  # type: ignore[arg-type, union-attr]
        return model

    monkeypatch.setattr(picture_files, "load_model", spoilt)
    with pytest.raises(RunFolderError, match="diverged"):
        next(dcfl.predict(squeezed, pictures))


def test_names_are_shown_as_plain_text(squeezed: Path, tmp_path: Path, cli: Call) -> None:
    name = "evil\x1b[31m\n.png"
    save(tmp_path / name, coloured("red", np.random.default_rng(0)))
    code, out, _ = cli("predict", squeezed, tmp_path)
    assert code == 0
    assert "\x1b" not in out
    assert len(out.splitlines()) == 1
    _, out, _ = cli("predict", squeezed, tmp_path, "--json")
    assert json.loads(out)["pictures"][0]["picture"] == str(tmp_path / name)


def test_a_model_of_feature_vectors_sees_no_pictures(
    tmp_path: Path, pictures: Path, cli: Call
) -> None:
    rng, labels = np.random.default_rng(0), np.arange(60) % 3
    vectors = rng.normal(size=(60, 3)).astype(np.float32)
    parts = {"train_features": vectors, "train_labels": labels}
    rest = {"test_features": vectors[:9], "test_labels": labels[:9]}
    np.savez(tmp_path / "vectors.npz", **parts, **rest)
    settings = {"data.dataset": f"npz:{tmp_path / 'vectors.npz'}", "model.name": "linear"}
    train(tmp_path / "run", **{**settings, "data.clients": 5, "data.alpha": 100.0})
    code, out, err = cli("predict", tmp_path / "run", pictures)
    assert (code, out) == (2, "")
    assert "feature vectors" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("place", ["", "red", "red/p1", "red/p1/left"])
def test_the_truth_is_known_wherever_below_the_class_one_looks(
    squeezed: Path, tmp_path: Path, place: str
) -> None:
    save(tmp_path / "red" / "p1" / "left" / "1.png", coloured("red", np.random.default_rng(0)))
    (one,) = dcfl.predict(squeezed, tmp_path / place)
    assert one.truth == "red"
