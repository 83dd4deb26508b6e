"""Each class on the page and on the card: a recall of nothing is not hidden by an accuracy."""

from pathlib import Path
from typing import Any

from dcfl.cli.cards import class_lines
from dcfl.comparisons.groups import group_runs
from dcfl.report.client_sections import class_section
from dcfl.report.run_page import page_of
from dcfl.runs.rows import ClassRecall
from tests.report.folders import write_run


def recalls(**values: tuple[int, float | None]) -> list[dict[str, Any]]:
    return [
        {"name": name, "images": images, "recall": recall}
        for name, (images, recall) in values.items()
    ]


def test_a_class_that_is_never_recognised_is_a_remark_that_is_open(tmp_path: Path) -> None:
    hidden = recalls(benign=(30, 100.0), malignant=(12, 0.0), unsure=(0, None))
    page = page_of([write_run(tmp_path / "trial", recalls=hidden)]).html
    caution = "The model never recognises malignant (12 test images)."
    assert caution in page
    assert '<details class="cautions" open>' in page
    assert "unsure (0" not in page


def test_of_several_runs_one_remark_says_how_many(tmp_path: Path) -> None:
    hidden, seen = recalls(a=(9, 100.0), b=(12, 0.0)), recalls(a=(9, 10.0), b=(12, 10.0))

    def remark(**runs: list[dict[str, Any]]) -> str:
        folders = {name: tmp_path / f"{len(runs)}{name}" for name in runs}
        written = [
            write_run(folders[name], method=name[:-1], seed=int(name[-1]), recalls=found)
            for name, found in runs.items()
        ]
        (found,) = [one for one in page_of(written).cautions if "some class" in one]
        return found

    one = "1 run of moon never recognises some class: b (12 test images)."
    assert remark(fedavg0=seen, moon0=hidden) == one
    several = "1 run of fedavg and 2 runs of moon never recognise some class: b (12 test images)."
    assert remark(fedavg0=hidden, fedavg1=seen, moon0=hidden, moon1=hidden) == several


def test_a_row_for_each_class_with_the_mean_over_seeds(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, recalls=found)
        for method, seed, found in (
            ("fedavg", 0, recalls(a=(10, 20.0), b=(5, None))),
            ("fedavg", 1, recalls(a=(10, 40.0), b=(5, None))),
            ("moon", 0, recalls(a=(10, 50.0), b=(5, 10.0))),
        )
    ]
    section = class_section(group_runs(runs))
    assert section is not None
    (table,) = section.tables
    assert list(table.columns) == ["Class", "Test images", "fedavg, %", "moon, %"]
    assert [list(row) for row in table.rows] == [
        ["a", "10", "30.00", "50.00"],
        ["b", "5", "–", "10.00"],
    ]


def test_of_many_classes_the_lowest(tmp_path: Path) -> None:
    many = recalls(**{f"c{number}": (10, float(number)) for number in range(100)})
    section = class_section(group_runs([write_run(tmp_path / "x", recalls=many)]))
    assert section is not None
    assert [row[0] for row in section.tables[0].rows] == [f"c{number}" for number in range(30)]
    assert class_section(group_runs([write_run(tmp_path / "unscored")])) is None


def test_the_card_names_them_all_or_the_lowest() -> None:
    two = [ClassRecall("benign", 30, 100.0), ClassRecall("malignant", 12, 0.0)]
    assert class_lines(two) == [
        "recall  benign: 100.0 % of 30, malignant: 0.0 % of 12",
        "missed  never recognised: malignant",
    ]
    many = [ClassRecall(f"c{number}", 9, 50.0 - number) for number in range(10)]
    (line,) = class_lines(many)
    assert line.startswith("recall  lowest of 10 classes: c9: 41.0 % of 9, c8: 42.0 % of 9")
    assert class_lines([ClassRecall("none", 0, None)]) == []
    weighted = "recall  benign: 100.0 % (30 images), malignant: 0.0 % (12 images)"
    assert class_lines(two, weighted=True)[0] == weighted
