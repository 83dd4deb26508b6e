"""What a page shows of evaluations."""

from pathlib import Path

import torch

from dcfl.report import write_report
from dcfl.runs.evaluations import ClientScore, EvaluationRecord, write_evaluation
from dcfl.scores import Scores
from tests.report.folders import TEN, write_run


def record(
    data: str = "digits", class_names: tuple[str, ...] = TEN, present: int = 10, **more: object
) -> EvaluationRecord:
    classes = len(class_names)
    labels = torch.arange(60) % present
    logits = torch.randn(60, classes, generator=torch.Generator().manual_seed(0))
    scores = Scores.of(logits + torch.nn.functional.one_hot(labels, classes), labels)
    own = data == "digits"
    names = (data, own, "test images", "last", "", class_names)
    return EvaluationRecord(*names, scores, **more)  # type: ignore[arg-type]


def page_of(folder: Path, *records: EvaluationRecord) -> str:
    write_run(folder)
    for one in records:
        write_evaluation(folder, one)
    return write_report(folder).read_text()


def test_one_evaluation_has_its_numbers_and_pictures(tmp_path: Path) -> None:
    clients = tuple(ClientScore(f"client {n}", 10, 10.0 * n) for n in range(8))
    one = record(clients=clients, clients_kind="images that it trained on")
    page = page_of(tmp_path / "run", one)
    assert page.count("<h2>Evaluation</h2>") == 1
    assert f"{one.scores.accuracy:.2f}" in page
    for words in ("Which class is taken", "Is it as right"):
        assert words in page
    assert "The worst 5 of 8 clients, each on images that it trained on" in page


def test_names_are_other_peoples_text(tmp_path: Path) -> None:
    names = ("<script>alert(1)</script>", *TEN[1:])
    page = page_of(tmp_path / "run", record("folder:/home/me/<b>birds", names, present=3))
    assert "<script>alert" not in page
    assert "<b>birds" not in page
    assert "/home/me" not in page
    assert "no images of 3, 4, 5, 6, 7, 8, 9" in page


def test_many_classes_and_many_evaluations_stay_readable(tmp_path: Path) -> None:
    many = tuple(f"class {number}" for number in range(60))
    others = [record(f"npz:{number}.npz", many, present=60) for number in range(4)]
    page = page_of(tmp_path / "run", record(), *others)
    assert "Pictures of the first 3 are shown." in page
    assert page.count(": is it as right as it is sure?</h3>") == 3
    few = page_of(tmp_path / "few", record("npz:few.npz", many, present=48))
    assert "class 56, class 57 and 2 more." in few
