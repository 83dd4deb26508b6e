"""dcfl embed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dcfl.runs.folder import RecordedRun
from dcfl.trained.subject import open_subject
from tests.command_line import Call
from tests.trained.picture_runs import CLASSES, picture_folder, trained_on


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: dict[str, Any] = {"model.head": "side16", "method.name": "dcfl-pw"}
    return trained_on(pictures, tmp_path_factory.mktemp("runs") / "run", **settings).folder


@pytest.mark.parametrize("layer", ["projection", "features"])
def test_the_file_holds_what_the_model_returns(
    layer: Any, run: Path, pictures: Path, tmp_path: Path, cli: Call
) -> None:
    out = tmp_path / "out.npz"
    code, shown, _ = cli("embed", run, pictures / "test", "-o", out, "--layer", layer)
    assert code == 0
    assert "39 pictures" in shown
    subject = open_subject(RecordedRun.open(run))
    model, test = subject.model, subject.dataset.test
    with torch.no_grad():
        output = model(subject.dataset.preparation.clean(test.pixels))
    with np.load(out, allow_pickle=False) as stored:
        order = np.argsort(stored["files"])  # the data set's own: by class, then by name
        assert [Path(file).parent.name for file in stored["files"][order]] == [
            CLASSES[label] for label in test.labels.tolist()
        ]
        assert stored["labels"][order].tolist() == test.labels.tolist()
        assert stored["predicted"][order].tolist() == output.logits.argmax(1).tolist()
        assert tuple(stored["class_names"]) == CLASSES
        wanted = output.z(layer).numpy()
        np.testing.assert_allclose(stored["features"][order], wanted, atol=1e-5)
    assert wanted.shape[1] == {"projection": 16, "features": 128}[layer]


def test_bad_pictures_and_names(run: Path, pictures: Path, tmp_path: Path, cli: Call) -> None:
    (tmp_path / "bad.png").write_text("no picture")
    good, out = pictures / "test" / "red" / "a.png", tmp_path / "x.npz"
    code, _, err = cli("embed", run, good, tmp_path / "bad.png", "-o", out)
    assert code == 2
    assert f"{tmp_path / 'bad.png'}: skipped (" in err
    with np.load(out, allow_pickle=False) as stored:
        assert stored["files"].tolist() == [str(good)]
        assert stored["labels"].tolist() == [-1]
    for words in ([tmp_path / "bad.png", "-o", tmp_path / "y.npz"], [good, "-o", "features.csv"]):
        code, _, err = cli("embed", run, *words)
        assert (code, len(err.splitlines())) == (2, 1)
    assert not (tmp_path / "y.npz").exists()
