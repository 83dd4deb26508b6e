"""Every run says how many of each class's test images its last model recognises."""

from pathlib import Path

import pytest
import torch

import dcfl
from dcfl.data import DataSettings, load_dataset
from dcfl.engines.engine import OwnScores
from dcfl.errors import Interrupted
from dcfl.evaluation import Evaluation
from dcfl.runs.rows import ClassRecall
from dcfl.runs.run import Run
from dcfl.runs.summaries import class_recalls
from dcfl.scores import Scores

SETTINGS = {"federation": {"rounds": 2}, "engine": {"workers": 1}}


def test_recalls_are_those_of_the_final_model(tmp_path: Path) -> None:
    result = dcfl.run(out=tmp_path / "run", **SETTINGS)
    digits = load_dataset(dcfl.Experiment().data)
    with torch.inference_mode():
        inputs = (digits.test.pixels.permute(0, 3, 1, 2) / 255 - 0.3053) / 0.3762
        answers = result.model(inputs).logits.argmax(dim=1)
    for label, found in enumerate(result.summary.recalls):
        of_class = digits.test.labels == label
        right = (answers[of_class] == label).double().mean().item()
        assert found.name == str(label)
        assert found.images == int(of_class.sum())
        assert found.recall == pytest.approx(100 * right)
    mean = sum(r.images * (r.recall or 0) for r in result.summary.recalls) / len(digits.test)
    assert mean == pytest.approx(result.summary.final_accuracy)


def test_a_run_that_was_killed_just_before_its_end(tmp_path: Path, monkeypatch) -> None:
    whole = dcfl.run(out=tmp_path / "whole", **SETTINGS, output={"checkpoint": 1})
    again = {"checkpoint": 1, "dir": str(tmp_path / "k")}
    killed = Run(dcfl.load_experiment(**SETTINGS, output=again))
    with monkeypatch.context() as patched:
        patched.setattr(Run, "_finish", lambda *_: (_ for _ in ()).throw(Interrupted("killed")))
        with pytest.raises(Interrupted):
            list(killed.rounds())
    resumed = dcfl.resume(tmp_path / "k")
    assert resumed.summary.recalls == whole.summary.recalls
    assert resumed.summary.weights_sha256 == whole.summary.weights_sha256


def test_where_sites_have_the_test_images_they_count_them() -> None:
    elsewhere = load_dataset(DataSettings(dataset="remote", class_names=("a", "b", "c"), clients=2))
    logits = torch.eye(3, dtype=torch.float64)[[0, 0, 1]]
    scores = [
        OwnScores(name, Scores.of(logits, torch.tensor([0, 1, 1])), 1.0)
        for name in ("north", "south")
    ]
    result = Evaluation(66.7, 0.5, torch.tensor([100.0, 50.0, torch.nan]))
    assert class_recalls(elsewhere, result, scores) == (
        ClassRecall("a", 2, 100.0),
        ClassRecall("b", 4, 50.0),
        ClassRecall("c", 0, None),
    )
    assert class_recalls(elsewhere, result, ()) == ()
    assert class_recalls(elsewhere, None, scores) == ()
