"""Where a comparison of recorded runs goes: a page, and JSON, CSV and LaTeX beside it."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from dcfl.cli import tables, terminal
from dcfl.cli.study_verbs import print_standing
from dcfl.comparisons.groups import group_runs
from dcfl.comparisons.standing import Standing
from tests.command_line import Call
from tests.report.folders import write_run


@pytest.fixture
def report(cli: Call, tmp_path: Path) -> Call:
    """`dcfl report both WORDS` about two methods with two seeds each."""
    for method, values in {"fedavg": (50.0, 54.0), "moon": (52.0, 58.0)}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / "both" / f"{method}{seed}", [value], method=method, seed=seed)
    return partial(cli, "report", "both")


@pytest.mark.slow
def test_files_are_written_beside_the_page(report: Call, tmp_path: Path) -> None:
    code, out, _ = report("--csv", "new/a.csv", "--latex", "a.tex", "--figures", "print")
    assert (code, out) == (
        0,
        "csv     new/a.csv\nlatex   a.tex\nreport  both/report.html\n",
    )
    rows = list(csv.DictReader((tmp_path / "new" / "a.csv").open()))
    assert [row["method"] for row in rows] == ["fedavg", "moon"]
    assert r"\toprule" in (tmp_path / "a.tex").read_text()
    drawn = tmp_path / "print" / "result-accuracy-over-rounds.svg"
    assert "fedavg" in drawn.read_text()
    assert drawn.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_a_dash_prints_that_and_nothing_else(report: Call) -> None:
    _, out, _ = report("--csv", "-")
    assert [row["gain"] for row in csv.DictReader(io.StringIO(out))] == ["", "3"]
    _, out, _ = report("--latex", "-")
    assert out.startswith("% Bold: the highest mean")
    assert out.endswith("\\end{tabular}\n")
    _, out, _ = report("--json")
    told = json.loads(out)
    assert told["report"] == "both/report.html"
    assert told["pairs"][0]["interval"] == pytest.approx([-9.706, 15.706], abs=1e-3)


def test_a_target_can_be_chosen(report: Call, tmp_path: Path) -> None:
    _, out, _ = report("--target", "53", "--json")
    fedavg, moon = json.loads(out)["methods"]
    assert (fedavg["target"]["reached"], moon["target"]["reached"]) == (1, 1)
    assert "To reach 53.00 %" in (tmp_path / "both" / "report.html").read_text()
    assert report("--target", "101")[0] == 2


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--json", "--csv", "-"), "choose one of them"),
        (("--csv", "-", "--latex", "-"), "choose one of them"),
        (("--csv", "both"), "--csv both: that is a folder"),
        (("--csv", "both/fedavg0/config.toml"), "both/fedavg0 is a run, name another folder"),
        (("--latex", "both/fedavg0/config.toml/a.tex"), "is not a folder"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    report: Call, tmp_path: Path, words: tuple[str, ...], wanted: str
) -> None:
    code, out, err = report(*words)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert wanted in err
    assert not (tmp_path / "both" / "report.html").exists()


def test_the_terminal_gets_tables_and_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        write_run(tmp_path / f"{method}{seed}", [value], method=method, seed=seed)
        for method, seed, value in (("fedavg", 0, 50.0), ("moon", 0, 52.0), ("fedavg", 1, 51.0))
    ]
    print_standing(Standing(group_runs(runs)))
    out = capsys.readouterr().out
    assert "1/0/0" in out
    assert "To reach fedavg's EMA, 50.50 % on average" in out
    assert "moon is 2.00 points above fedavg in one seed, which says nothing about chance.\n" in out


@pytest.mark.parametrize("width", [80, 160])
def test_no_number_is_cut_off(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(highlight=False, markup=False, width=width)
    monkeypatch.setattr(terminal, "stdout", console)
    monkeypatch.setattr(tables, "stdout", console)
    runs = [
        write_run(tmp_path / f"{method}{seed}", [value], method=method, seed=seed)
        for method, values in {"fedavg": (74.2, 81.5), "scaffold": (91.3, 99.9)}.items()
        for seed, value in enumerate(values)
    ]
    print_standing(Standing(group_runs(runs)))
    out = capsys.readouterr().out
    assert "+17.75 ± 0.92" in out
    assert "…" not in out
    assert ("curve" in out) == (width == 160)
