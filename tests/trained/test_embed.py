"""dcfl embed and dcfl neighbours."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcfl.runs.folder import RecordedRun
from dcfl.trained.neighbours import find_neighbours, most_similar
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


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 12))
def test_the_most_similar(asked: int, known: int, count: int) -> None:
    rng = np.random.default_rng(asked * 100 + known)
    a, b = rng.normal(size=(asked, 4)), rng.normal(size=(known, 4))
    cosines, indices = most_similar(torch.tensor(a), torch.tensor(b), count)
    for row, vector in enumerate(a):
        all_of_them = [
            vector @ other / np.linalg.norm(vector) / np.linalg.norm(other) for other in b
        ]
        best = sorted(range(known), key=lambda at: -all_of_them[at])[:count]
        assert indices[row].tolist() == best
        np.testing.assert_allclose(cosines[row], [all_of_them[at] for at in best])


def test_the_page_stands_alone_and_tells_right_from_wrong(
    run: Path, tmp_path: Path, cli: Call
) -> None:
    out = tmp_path / "page.html"
    code, _, _ = cli("neighbours", run, "--out", out, "--images", 4, "--each", 3)
    text = out.read_text()
    assert code == 0
    assert not re.findall(r'(?:src|href)="(?!data:image/png;base64,)', text)
    subject = open_subject(RecordedRun.open(run))
    found = find_neighbours(subject, 4, 3)
    shown = [*found.drawn, *found.wrong]
    assert text.count("<img ") == 4 * len(shown)
    right = sum(query.predicted == query.label for query in shown)
    same = sum(near.label == query.label for query in shown for near in query.neighbours)
    assert text.count('class="good"') == right + same
    assert all(query.predicted != query.label for query in found.wrong)
    assert cli("neighbours", tmp_path)[0] == 2
